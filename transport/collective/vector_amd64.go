package collective

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:noescape
func streamAVX(dst, src *byte, n int)

//go:noescape
func sumF32AVX(acc, in *byte, n int)

//go:noescape
func sumF64AVX(acc, in *byte, n int)

//go:noescape
func sumI32AVX(acc, in *byte, n int)

//go:noescape
func sumI64AVX(acc, in *byte, n int)

const (
	stride = 128       // bytes that the assembly does at a time
	line   = 32        // to which the target of stores past the caches is aligned
	burst  = 256 << 10 // bytes without a point at which Go can stop the goroutine
)

var hasVectors = cpu.X86.HasAVX2

// stream is copy past the caches, for what is not read soon.
func stream(dst, src []byte) {
	if !hasVectors || len(dst) < streamBytes {
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

// vectorSum returns the sum of a type by vectors, or plain, which does what they leave.
func vectorSum[T number](vectors func(acc, in *byte, n int), plain func(acc, in []T)) func(acc, in []T) {
	if !hasVectors {
		return plain
	}
	return func(acc, in []T) {
		size := int(unsafe.Sizeof(acc[0]))
		n := len(acc) * size / stride * stride
		if n > 0 {
			vectors((*byte)(unsafe.Pointer(unsafe.SliceData(acc))), (*byte)(unsafe.Pointer(unsafe.SliceData(in))), n)
		}
		plain(acc[n/size:], in[n/size:])
	}
}

var (
	sumF32 = vectorSum(sumF32AVX, sum[float32])
	sumF64 = vectorSum(sumF64AVX, sum[float64])
	sumS32 = vectorSum(sumI32AVX, sum[int32])
	sumS64 = vectorSum(sumI64AVX, sum[int64])
	sumU32 = vectorSum(sumI32AVX, sum[uint32])
	sumU64 = vectorSum(sumI64AVX, sum[uint64])
)
