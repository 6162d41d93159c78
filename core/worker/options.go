package worker

func withAssignment(options []byte, ids []int) ([]byte, error) { return options, nil }
func grid(options []byte, devices int) (replicas, partitions uint32, err error) {
	return uint32(devices), 1, nil
}
