package schedule

import (
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxDevices is the number of devices that an island may have; they are numbered from 0. A set of all of them takes
// 8 KiB.
const MaxDevices = 1 << 16

// DeviceSet is a set of devices of one island. It is immutable and passed by value;
// a set of devices below 64 needs no memory outside of the value. The zero
// DeviceSet is empty.
type DeviceSet struct {
	mask
	n int
}

// Devices returns the set of the given devices, each in [0, MaxDevices), in any
// order, repeated or not. It panics if one is out of range: callers check a list of
// devices where it enters the system.
func Devices(ids ...int) DeviceSet {
	var s DeviceSet
	for _, d := range ids {
		if d < 0 || d >= MaxDevices {
			panic(fmt.Sprintf("schedule: device %d is not in [0, %d)", d, MaxDevices))
		}
		if d < 64 {
			s.low |= 1 << d
			continue
		}
		i := d/64 - 1
		for len(s.high) <= i {
			s.high = append(s.high, 0)
		}
		s.high[i] |= 1 << (d % 64)
	}
	s.n = bits.OnesCount64(s.low)
	for _, w := range s.high {
		s.n += bits.OnesCount64(w)
	}
	return s
}

// Len returns the number of devices.
func (s DeviceSet) Len() int { return s.n }

// Has reports whether d is in the set.
func (s DeviceSet) Has(d int) bool {
	switch {
	case d < 0:
		return false
	case d < 64:
		return s.low>>d&1 != 0
	default:
		i := d/64 - 1
		return i < len(s.high) && s.high[i]>>(d%64)&1 != 0
	}
}

// All returns an iterator over the devices in ascending order.
func (s DeviceSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := -1; i < len(s.high); i++ {
			w := s.low
			if i >= 0 {
				w = s.high[i]
			}
			for ; w != 0; w &= w - 1 {
				if !yield((i+1)*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// String formats the set as ranges, such as 0-3,8.
func (s DeviceSet) String() string {
	var b strings.Builder
	from, to := -1, -1
	flush := func() {
		if from < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(from))
		if to > from {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(to))
		}
	}
	for d := range s.All() {
		if from >= 0 && d == to+1 {
			to = d
			continue
		}
		flush()
		from, to = d, d
	}
	flush()
	return b.String()
}

// mask is a set of bits; high continues low, 64 bits a word.
type mask struct {
	low  uint64
	high []uint64
}

func (m *mask) overlaps(o *mask) bool {
	if m.low&o.low != 0 {
		return true
	}
	for i := range min(len(m.high), len(o.high)) {
		if m.high[i]&o.high[i] != 0 {
			return true
		}
	}
	return false
}

// covers reports whether m has all of o's bits.
func (m *mask) covers(o *mask) bool {
	if o.low&^m.low != 0 {
		return false
	}
	for i, w := range o.high {
		if w != 0 && (i >= len(m.high) || w&^m.high[i] != 0) {
			return false
		}
	}
	return true
}

// add adds o's bits to m. No other mask shares m's words.
func (m *mask) add(o *mask) {
	m.low |= o.low
	for len(m.high) < len(o.high) {
		m.high = append(m.high, 0)
	}
	for i, w := range o.high {
		m.high[i] |= w
	}
}

// remove clears o's bits in m and reports whether any are left.
func (m *mask) remove(o *mask) bool {
	m.low &^= o.low
	left := m.low
	for i := range m.high {
		if i < len(o.high) {
			m.high[i] &^= o.high[i]
		}
		left |= m.high[i]
	}
	return left != 0
}

// intersect sets m to the bits that a and b share and reports whether there are any.
func (m *mask) intersect(a, b *mask) bool {
	m.low = a.low & b.low
	left := m.low
	m.high = m.high[:0]
	for i := range min(len(a.high), len(b.high)) {
		w := a.high[i] & b.high[i]
		m.high = append(m.high, w)
		left |= w
	}
	return left != 0
}
