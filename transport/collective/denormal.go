//go:build amd64 || arm64

package collective

import "runtime"

// XLA's CPU threads take numbers below the normal ones for zero, and give zero in
// their place. So does a fold, or it would not have the bits of one process.

// control returns the word that says how the processor treats floats, of this thread.
func control() uint64

func setControl(word uint64)

// flushed calls f on a thread that flushes denormal floats to zero.
func flushed(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	word := control()
	if word&flushBits == flushBits { // a thread of the plugin
		f()
		return
	}
	setControl(word | flushBits)
	defer setControl(word)
	f()
}
