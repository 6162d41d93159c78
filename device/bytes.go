package device

// Bytes are bytes in memory that may not be Go's: a driver's, which Release gives back. The zero Bytes are none.
type Bytes struct {
	Data    []byte
	release func()
}

// NewBytes returns bytes that release, which may be nil, gives back.
func NewBytes(data []byte, release func()) Bytes { return Bytes{data, release} }

// Release gives the memory back. It is called once, after the last use of Data.
func (b Bytes) Release() {
	if b.release != nil {
		b.release()
	}
}
