//go:build !amd64 && !arm64

package collective

// flushed calls f. On this processor denormal floats stay what they are.
func flushed(f func()) { f() }
