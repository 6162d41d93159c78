package sim

import "github.com/openpathways/pathways/core/xla/compileoptions"

// CompileOptions returns an xla.CompileOptionsProto that asks for one replica on
// each of the devices with these ids.
func CompileOptions(devices []int) []byte { return compileoptions.New(len(devices), 1, devices, false) }

// devices returns the ids of the devices of an executable, row by row, which is
// replica by replica. If the options name none, they are 0, 1, 2 and so on: as many as
// the program is for, unless the options ask for several.
func devices(options []byte, p *parsed) ([]int, error) {
	o, err := compileoptions.Parse(options)
	if err != nil {
		return nil, err
	}
	if o.Devices == nil && o.Replicas*o.Partitions == 1 {
		o.Replicas = max(1, p.Devices)
	}
	ids := make([]int, o.Replicas*o.Partitions)
	for i := range ids {
		if ids[i] = i; o.Devices != nil {
			ids[i] = int(o.Devices[i])
		}
	}
	return ids, nil
}
