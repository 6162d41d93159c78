package wire

// MaxDevices bounds the devices that a row is read as, so that bad numbers take no memory.
const MaxDevices = 1 << 20

// DevicesOf writes virtual devices in their order. Those of a mesh are few rows.
func DevicesOf(numbers []uint32) (all []*Devices) {
	for len(numbers) > 0 {
		d, n := &Devices{First: numbers[0]}, 1
		for n < len(numbers) && (n == 1 || int32(numbers[n]-numbers[n-1]) == d.Step) {
			d.Step = int32(numbers[n] - numbers[n-1])
			n++
		}
		d.Count = uint32(n)
		all, numbers = append(all, d), numbers[n:]
	}
	return all
}

// NumbersOf is the inverse of DevicesOf.
func NumbersOf(all []*Devices) (numbers []uint32) {
	for _, d := range all {
		for k := range min(d.GetCount(), MaxDevices) {
			numbers = append(numbers, d.First+k*uint32(d.Step))
		}
	}
	return numbers
}
