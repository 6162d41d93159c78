package uncached

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func streamAVX(dst, src *byte, n int)

// fence has the stores of streamAVX before all that come after it.
func fence()

const (
	line   = 32        // to which the target of stores past the caches is aligned
	stride = 128       // bytes that streamAVX copies at a time
	burst  = 256 << 10 // bytes without a point at which Go can stop the goroutine
)

var hasVectors = cpu.X86.HasAVX2

// stream copies as many bytes as dst has. A fence must come before another processor reads them.
func stream(dst, src []byte) {
	if !hasVectors || len(dst) < shortest {
		copy(dst, src)
		return
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % line)
	copy(dst[:head], src)
	dst, src = dst[head:], src[head:]
	for len(dst) >= stride {
		n := min(len(dst), burst) / stride * stride
		streamAVX(unsafe.SliceData(dst), unsafe.SliceData(src), n)
		dst, src = dst[n:], src[n:]
	}
	copy(dst, src)
}
