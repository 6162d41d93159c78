package placement

import "math/bits"

// Numbers is a set of devices, by their numbers in the whole cluster: see Offer.First. The zero Numbers is empty.
type Numbers []uint64

// Has reports whether a device is in the set.
func (n Numbers) Has(device int) bool { return device>>6 < len(n) && n[device>>6]>>(device&63)&1 != 0 }

// Count returns the number of devices in the set.
func (n Numbers) Count() (devices int) {
	for _, word := range n {
		devices += bits.OnesCount64(word)
	}
	return devices
}

// common returns the number of devices that are in both sets.
func (n Numbers) common(o Numbers) (devices int) {
	for i := range min(len(n), len(o)) {
		devices += bits.OnesCount64(n[i] & o[i])
	}
	return devices
}

// Add adds a device.
func (n *Numbers) Add(device int) {
	for len(*n) <= device>>6 {
		*n = append(*n, 0)
	}
	(*n)[device>>6] |= 1 << (device & 63)
}

// add adds count devices from first on.
func (n *Numbers) add(first, count int) {
	end := first + count
	for len(*n) < (end+63)>>6 {
		*n = append(*n, 0)
	}
	for first < end {
		at := first & 63
		most := min(64-at, end-first) // in one word
		(*n)[first>>6] |= ^uint64(0) >> (64 - most) << at
		first += most
	}
}

// run reports whether a device is in the set, and how many are alike from it on; most at most.
func (n Numbers) run(first, most int) (in bool, count int) {
	in = n.Has(first)
	for count < most {
		word, at := uint64(0), (first+count)&63
		if i := (first + count) >> 6; i < len(n) {
			word = n[i]
		}
		if in {
			word = ^word
		}
		alike := min(bits.TrailingZeros64(word>>at), 64-at)
		if count += alike; at+alike < 64 {
			break
		}
	}
	return in, min(count, most)
}

// Union adds the devices of another set.
func (n *Numbers) Union(o Numbers) {
	for len(*n) < len(o) {
		*n = append(*n, 0)
	}
	for i, word := range o {
		(*n)[i] |= word
	}
}

// remove removes count devices from first on.
func (n Numbers) remove(first, count int) {
	for d := first; d < first+count && d>>6 < len(n); d++ {
		n[d>>6] &^= 1 << (d & 63)
	}
}
