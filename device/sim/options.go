package sim

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/openpathways/pathways/core/status"
)

// Field numbers of XLA's compile_options.proto and xla_data.proto.
const (
	fieldBuildOptions      = 3 // CompileOptionsProto.executable_build_options
	fieldReplicas          = 4 // ExecutableBuildOptionsProto.num_replicas
	fieldPartitions        = 5 // ….num_partitions
	fieldAssignment        = 9 // ….device_assignment
	fieldComputationDevice = 3 // DeviceAssignmentProto.computation_devices, one a partition
	fieldReplicaDevice     = 1 // ….ComputationDevice.replica_device_ids
)

// placement is what simulated devices read of an xla.CompileOptionsProto.
type placement struct {
	replicas, partitions int64
	byPartition          [][]int64 // device ids: by partition, then replica
}

// CompileOptions writes the xla.CompileOptionsProto that asks for one replica on
// each of the devices with these ids.
func CompileOptions(devices []int) []byte {
	var ids, row, assignment, build []byte
	for _, d := range devices {
		ids = protowire.AppendVarint(ids, uint64(d))
	}
	row = appendBytes(row, fieldReplicaDevice, ids)
	assignment = appendVarint(assignment, 1, uint64(len(devices))) // replica_count
	assignment = appendVarint(assignment, 2, 1)                    // computation_count
	assignment = appendBytes(assignment, fieldComputationDevice, row)
	build = appendVarint(build, fieldReplicas, uint64(len(devices)))
	build = appendVarint(build, fieldPartitions, 1)
	build = appendBytes(build, fieldAssignment, assignment)
	return appendBytes(nil, fieldBuildOptions, build)
}

func appendVarint(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// parsePlacement reads the options; ok is false where they name no devices and
// no number of them.
func parsePlacement(options []byte) (p placement, ok bool, err error) {
	p = placement{replicas: 1, partitions: 1}
	err = fields(options, func(n protowire.Number, _ uint64, build []byte) error {
		if n != fieldBuildOptions {
			return nil
		}
		return fields(build, func(n protowire.Number, v uint64, b []byte) error {
			switch n {
			case fieldReplicas:
				p.replicas, ok = int64(v), true
			case fieldPartitions:
				p.partitions, ok = int64(v), true
			case fieldAssignment:
				ok = true
				return p.assignment(b)
			}
			return nil
		})
	})
	return p, ok, status.Wrap(err, "compile options")
}

func (p *placement) assignment(b []byte) error {
	return fields(b, func(n protowire.Number, _ uint64, b []byte) error {
		if n != fieldComputationDevice {
			return nil
		}
		var ids []int64
		err := fields(b, func(n protowire.Number, v uint64, packed []byte) error {
			if n != fieldReplicaDevice {
				return nil
			}
			if packed == nil {
				ids = append(ids, int64(v))
			}
			for len(packed) > 0 {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return malformed(n)
				}
				ids, packed = append(ids, int64(v)), packed[n:]
			}
			return nil
		})
		p.byPartition = append(p.byPartition, ids)
		return err
	})
}

// devices gives the ids of the devices of an executable, row by row, which is
// replica by replica; without an assignment they are 0, 1, 2 and so on.
func (p placement) devices() ([]int, error) {
	const most = 1 << 20 // devices, so that bad numbers take no memory
	if p.replicas < 1 || p.partitions < 1 || p.replicas > most || p.partitions > most/p.replicas {
		return nil, status.New(status.InvalidArgument, "%d replicas of %d partitions, want at least one of each and at most %d devices", p.replicas, p.partitions, most)
	}
	ids := make([]int, 0, p.replicas*p.partitions)
	if p.byPartition == nil {
		for i := range p.replicas * p.partitions {
			ids = append(ids, int(i))
		}
		return ids, nil
	}
	for r := range p.replicas {
		for c := range p.partitions {
			if int64(len(p.byPartition)) != p.partitions || int64(len(p.byPartition[c])) != p.replicas {
				return nil, status.New(status.InvalidArgument, "compile options: the device assignment is not one of %d replicas of %d partitions", p.replicas, p.partitions)
			}
			ids = append(ids, int(p.byPartition[c][r]))
		}
	}
	return ids, nil
}

// fields calls f for each field of a message with its number and value; b is
// not nil for fields of bytes only.
func fields(msg []byte, f func(n protowire.Number, v uint64, b []byte) error) error {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return malformed(n)
		}
		msg = msg[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			if b, n = protowire.ConsumeBytes(msg); n >= 0 && b == nil {
				b = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, msg)
		}
		if n < 0 {
			return malformed(n)
		}
		msg = msg[n:]
		if err := f(num, v, b); err != nil {
			return err
		}
	}
	return nil
}

func malformed(n int) error {
	return status.New(status.InvalidArgument, "want a serialized xla.CompileOptionsProto: %w", protowire.ParseError(n))
}
