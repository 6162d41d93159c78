package cluster

import "unsafe"

// Look is look, for tests.
func Look(buffer unsafe.Pointer, size int) []byte { return look(buffer, size) }

// Pack and Unpack are program's, for tests.
func Pack(version, format string, code, options []byte, manual bool) []byte {
	return program{version, format, code, options, manual}.pack()
}

func Unpack(data []byte) (version, format string, code, options []byte, manual bool, err error) {
	p, err := unpack(data)
	return p.version, p.format, p.code, p.options, p.manual, err
}
