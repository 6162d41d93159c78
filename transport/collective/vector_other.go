//go:build !amd64

package collective

// stream is copy: only amd64 has one past the caches here.
func stream(dst, src []byte) { copy(dst, src) }

var (
	sumF32 = sum[float32]
	sumF64 = sum[float64]
	sumS32 = sum[int32]
	sumS64 = sum[int64]
	sumU32 = sum[uint32]
	sumU64 = sum[uint64]
)
