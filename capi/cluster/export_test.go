package cluster

// Pack and Unpack are program's, for tests.
func Pack(version, format string, code, options []byte) []byte {
	return program{version, format, code, options}.pack()
}

func Unpack(data []byte) (version, format string, code, options []byte, err error) {
	p, err := unpack(data)
	return p.version, p.format, p.code, p.options, err
}
