package sim

import (
	"github.com/openpathways/pathways/core/protowalk"
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
	row := make([]int64, len(devices))
	for i, d := range devices {
		row[i] = int64(d)
	}
	var assignment, build []byte
	assignment = protowalk.AppendInt(assignment, 1, int64(len(devices))) // replica_count
	assignment = protowalk.AppendInt(assignment, 2, 1)                   // computation_count
	assignment = protowalk.AppendBytes(assignment, fieldComputationDevice, protowalk.AppendInts(nil, fieldReplicaDevice, row...))
	build = protowalk.AppendInt(build, fieldReplicas, int64(len(devices)))
	build = protowalk.AppendInt(build, fieldPartitions, 1)
	build = protowalk.AppendBytes(build, fieldAssignment, assignment)
	return protowalk.AppendBytes(nil, fieldBuildOptions, build)
}

// parsePlacement reads the options; ok is false where they name no devices and
// no number of them.
func parsePlacement(options []byte) (p placement, ok bool, err error) {
	p = placement{replicas: 1, partitions: 1}
	for f, err := range protowalk.Fields(options) {
		if err == nil && f.Number == fieldBuildOptions {
			err = p.read(f.Bytes, &ok)
		}
		if err != nil {
			return p, ok, status.Wrap(err, "compile options: want a serialized xla.CompileOptionsProto")
		}
	}
	return p, ok, nil
}

func (p *placement) read(build []byte, ok *bool) error {
	for f, err := range protowalk.Fields(build) {
		switch f.Number {
		case fieldReplicas:
			p.replicas, *ok = int64(f.Value), true
		case fieldPartitions:
			p.partitions, *ok = int64(f.Value), true
		case fieldAssignment:
			*ok = true
			err = p.assignment(f.Bytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *placement) assignment(b []byte) error {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return err
		}
		if f.Number != fieldComputationDevice {
			continue
		}
		var ids []int64
		for f, err := range protowalk.Fields(f.Bytes) {
			if err == nil && f.Number == fieldReplicaDevice {
				ids, err = f.AppendInts(ids)
			}
			if err != nil {
				return err
			}
		}
		p.byPartition = append(p.byPartition, ids)
	}
	return nil
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
