package link

// KeepMost has tests of connections on which no goroutine receives end soon.
func KeepMost(bytes int) (restore func()) {
	was := keepMost
	keepMost = bytes
	return func() { keepMost = was }
}
