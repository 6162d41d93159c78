package transport

// Sharer is an Exchange that can have several peers read one block where it lies, so that it
// is written once, however many they are.
type Sharer interface {
	// Shares says whether a block for this peer may be one of those.
	Shares(peer uint64) bool
	// Share is Push of one block to peers of which Shares is true. Each gets a Block that is
	// Lent, unless it expects the bytes in memory of its own. Fill writes the block, once, or
	// once for each peer where there is no memory at hand for one that all read; its error is
	// what the peers get. Done is called once, when the block is written, or never will be. A
	// push that was given up may still call fill after that.
	Share(peers []uint64, key Key, size int64, fill func(dst []byte) error, done func())
}
