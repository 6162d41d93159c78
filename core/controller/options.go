package controller

import (
	"math"

	"github.com/openpathways/pathways/core/protowalk"
	"github.com/openpathways/pathways/core/status"
)

// Field numbers of XLA's compile_options.proto and xla_data.proto.
const (
	optionsBuild    = 3 // CompileOptionsProto.executable_build_options
	optionsPortable = 4 // ….compile_portable_executable

	buildReplicas   = 4 // ExecutableBuildOptionsProto.num_replicas
	buildPartitions = 5
	buildAssignment = 9 // ….device_assignment

	assignmentReplicas     = 1 // DeviceAssignmentProto.replica_count
	assignmentComputations = 2
	assignmentDevices      = 3 // ….computation_devices, one a partition
	computationReplicaIDs  = 1
)

// assignment is what compile options say of devices, apart from all else they
// say.
type assignment struct {
	replicas, partitions int64
	portable             bool
	rows                 []uint32 // devices, replica by replica; nil where none are named
	options, build       []byte   // the rest of the fields
}

// parseOptions reads a serialized xla.CompileOptionsProto.
//
// Errors: INVALID_ARGUMENT.
func parseOptions(options []byte) (assignment, error) {
	a := assignment{replicas: 1, partitions: 1}
	var devices []byte
	for f, err := range protowalk.Fields(options) {
		switch {
		case err != nil:
			return a, status.Wrap(err, "compile options: expected a serialized xla.CompileOptionsProto")
		case f.Number == optionsPortable:
			a.portable = f.Value != 0
			a.options = append(a.options, f.Raw...)
		case f.Number != optionsBuild || f.Bytes == nil:
			a.options = append(a.options, f.Raw...)
		default:
			for f, err := range protowalk.Fields(f.Bytes) {
				switch {
				case err != nil:
					return a, status.Wrap(err, "compile options: expected an xla.ExecutableBuildOptionsProto")
				case f.Number == buildAssignment:
					devices = append(devices, f.Bytes...) // messages that are there twice are one
					continue
				case f.Number == buildReplicas:
					a.replicas = int64(f.Value)
				case f.Number == buildPartitions:
					a.partitions = int64(f.Value)
				}
				a.build = append(a.build, f.Raw...)
			}
		}
	}
	if devices != nil && !a.portable {
		if err := a.read(devices); err != nil {
			return a, err
		}
	}
	if a.replicas < 1 || a.partitions < 1 || a.replicas > math.MaxInt32 || a.partitions > math.MaxInt32 {
		return a, invalid("compile options ask for %d replicas of %d partitions; expected at least 1 of each", a.replicas, a.partitions)
	}
	return a, nil
}

func (a *assignment) read(devices []byte) error {
	var columns [][]int64 // by partition, then replica
	for f, err := range protowalk.Fields(devices) {
		if err != nil {
			return status.Wrap(err, "compile options: expected an xla.DeviceAssignmentProto")
		}
		if f.Number != assignmentDevices {
			continue
		}
		var column []int64
		for f, err := range protowalk.Fields(f.Bytes) {
			if err == nil && f.Number == computationReplicaIDs {
				column, err = f.AppendInts(column)
			}
			if err != nil {
				return status.Wrap(err, "compile options: expected an xla.DeviceAssignmentProto")
			}
		}
		columns = append(columns, column)
	}
	if len(columns) == 0 {
		return nil
	}
	a.partitions, a.replicas = int64(len(columns)), int64(len(columns[0]))
	for _, c := range columns {
		if int64(len(c)) != a.replicas {
			return invalid("the device assignment has %d devices for one partition and %d for another", a.replicas, len(c))
		}
	}
	for r := range a.replicas {
		for p := range a.partitions {
			d := columns[p][r]
			if d < 0 || d > math.MaxUint32 {
				return invalid("the device assignment names device %d, which is not there", d)
			}
			a.rows = append(a.rows, uint32(d))
		}
	}
	return nil
}

// canonical writes the options with devices named by their rows, 0, 1, 2 …, as
// workers get them: equal for equal programs on other devices.
func (a *assignment) canonical() []byte {
	build := a.build
	if !a.portable {
		var devices []byte
		devices = protowalk.AppendInt(devices, assignmentReplicas, a.replicas)
		devices = protowalk.AppendInt(devices, assignmentComputations, a.partitions)
		for p := range a.partitions {
			ids := make([]int64, a.replicas)
			for r := range a.replicas {
				ids[r] = r*a.partitions + p
			}
			devices = protowalk.AppendBytes(devices, assignmentDevices, protowalk.AppendInts(nil, computationReplicaIDs, ids...))
		}
		build = protowalk.AppendBytes(build, buildAssignment, devices)
	}
	return protowalk.AppendBytes(a.options, optionsBuild, build)
}
