//go:build !race

package bubble

// processors changes nothing: only the race detector needs one processor.
func processors() (restore func()) {
	return func() {}
}
