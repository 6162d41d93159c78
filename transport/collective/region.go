package collective

import (
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// region is count runs of bytes of a buffer, stride apart. A dense region has
// one run.
type region struct{ off, run, stride, count int64 }

func dense(off, bytes int64) region { return region{off, bytes, bytes, 1} }

func (r region) bytes() int64 { return r.run * r.count }

// like returns r in as many runs as o has, where r is dense.
func (r region) like(o region) region {
	if r.count == 1 && o.count != 1 && o.count > 0 {
		return region{r.off, o.run, o.run, o.count}
	}
	return r
}

// slab is the part-th of so many equal parts of a dense row-major array along a
// dimension.
func slab(s shape.Shape, dim, part, parts int) (region, error) {
	if dim < 0 || dim >= len(s.Dims) || s.Dims[dim]%int64(parts) != 0 {
		return region{}, status.New(status.InvalidArgument, "%s does not divide into %d parts along dimension %d", s, parts,
			dim)
	}
	outer, inner := int64(1), int64(s.DType.Bits())
	for _, d := range s.Dims[:dim] {
		outer *= d
	}
	for _, d := range s.Dims[dim+1:] {
		inner *= d
	}
	row, run := s.Dims[dim]*inner, s.Dims[dim]/int64(parts)*inner
	if row%8 != 0 || run%8 != 0 {
		if outer > 1 || run%8 != 0 {
			return region{}, status.New(status.Unimplemented, "a part of %s along dimension %d is not of whole bytes", s, dim)
		}
	}
	r := region{int64(part) * run / 8, run / 8, row / 8, outer}
	if r.stride == r.run { // parts is 1
		return dense(r.off, r.bytes()), nil
	}
	return r, nil
}

// move copies a region into another of as many bytes, which it does not overlap. Put copies a run.
func move(dst []byte, d region, src []byte, s region, put func(dst, src []byte)) {
	d, s = d.like(s), s.like(d)
	switch {
	case d.bytes() == 0 && s.bytes() == 0:
	case d.count != s.count || d.run != s.run:
		panic("collective: regions of different sizes")
	case d.count == 1:
		put(dst[d.off:d.off+d.run], src[s.off:s.off+s.run])
	default:
		for i := range d.count {
			to, from := d.off+i*d.stride, s.off+i*s.stride
			put(dst[to:to+d.run], src[from:from+s.run])
		}
	}
}

// cut is a range of the bytes of a region.
type cut struct{ from, to int64 }

// of returns the range of a region. In one of several runs it begins and ends between runs, or lies within one.
func (c cut) of(r region) region {
	switch {
	case r.count == 1:
		return dense(r.off+c.from, c.to-c.from)
	case c.from >= c.to || r.run == 0:
		return dense(r.off, 0)
	}
	first := c.from / r.run
	if rest := c.from % r.run; rest > 0 || c.to-c.from < r.run {
		return dense(r.off+first*r.stride+rest, c.to-c.from)
	}
	return region{r.off + first*r.stride, r.run, r.stride, (c.to - c.from) / r.run}
}

// cutting yields the ranges into which a region is cut, of so many bytes, or a little less, each.
func (r region) cutting(bytes int64) func(yield func(cut) bool) {
	return func(yield func(cut) bool) {
		whole := r.bytes()
		if whole == 0 {
			return
		}
		if r.count > 1 && r.run <= bytes {
			bytes = bytes / r.run * r.run
		} else if r.count > 1 {
			whole = r.run // and so for each run
		}
		for at := int64(0); at < r.bytes(); {
			end := min(at+bytes, (at/whole+1)*whole)
			if !yield(cut{at, end}) {
				return
			}
			at = end
		}
	}
}

// cachedCopy is how much is copied at a time where the copy is read soon: longer ones Go copies past the caches.
const cachedCopy = 256 << 10

// plainly copies through the caches.
func plainly(dst, src []byte) {
	for len(dst) > 0 {
		n := min(len(dst), cachedCopy)
		copy(dst[:n], src)
		dst, src = dst[n:], src[n:]
	}
}
