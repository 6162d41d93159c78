package device

// Bytes are bytes in memory that may not be Go's: a driver's, which Release returns. The zero Bytes are none.
type Bytes struct {
	Data    []byte
	release func()
}

// NewBytes returns bytes that release, which may be nil, frees.
func NewBytes(data []byte, release func()) Bytes { return Bytes{data, release} }

// Release frees the memory. It is called once, after the last use of Data.
func (b Bytes) Release() {
	if b.release != nil {
		b.release()
	}
}
