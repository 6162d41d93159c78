package spmd

import (
	"slices"

	"github.com/openpathways/pathways/core/protowalk"
	"github.com/openpathways/pathways/core/status"
)

// Field numbers of messages in XLA's xla/pjrt/proto/compile_options.proto and
// xla/xla_data.proto.
const (
	compileArgumentLayouts = 1
	compileBuildOptions    = 3
	compilePortable        = 4

	buildDeviceOrdinal    = 1
	buildResultLayout     = 2
	buildReplicas         = 4
	buildPartitions       = 5
	buildSPMD             = 6
	buildAutoSPMD         = 7
	buildDeviceAssignment = 9
	buildBackendOnly      = 11
	buildShardy           = 19

	assignmentReplicas     = 1
	assignmentComputations = 2
	assignmentDevices      = 3
	computationReplicaIDs  = 1
)

// Options is what a CompileOptionsProto says of a program's devices.
type Options struct {
	Replicas, Partitions int     // 1 where it does not say
	Assignment           []int64 // device ids by rank, replica*Partitions + partition; nil where it does not say
	Portable             bool    // one shard, on any device
}

// ParseOptions reads a serialized xla.CompileOptionsProto. Nil is one replica and
// one partition.
func ParseOptions(options []byte) (Options, error) {
	o := Options{Replicas: 1, Partitions: 1}
	var build, assignment []byte
	for f, err := range protowalk.Fields(options) {
		if err != nil {
			return Options{}, badOptions(err)
		}
		switch f.Number {
		case compileBuildOptions:
			build = append(build, f.Bytes...) // a message in several pieces is their sum
		case compilePortable:
			o.Portable = f.Value != 0
		}
	}
	for f, err := range protowalk.Fields(build) {
		if err != nil {
			return Options{}, badOptions(err)
		}
		switch f.Number {
		case buildReplicas:
			o.Replicas = int(int64(f.Value))
		case buildPartitions:
			o.Partitions = int(int64(f.Value))
		case buildDeviceAssignment:
			assignment = append(assignment, f.Bytes...)
		}
	}
	o.Replicas, o.Partitions = max(o.Replicas, 1), max(o.Partitions, 1)
	if o.Replicas > maxRanks || o.Partitions > maxRanks || o.Replicas*o.Partitions > maxRanks {
		return Options{}, badOptions(status.New(status.InvalidArgument, "%d replicas and %d partitions, want at most %d devices",
			o.Replicas, o.Partitions, maxRanks))
	}
	if assignment != nil {
		var err error
		if o.Assignment, err = o.readAssignment(assignment); err != nil {
			return Options{}, badOptions(err)
		}
	}
	return o, nil
}

func badOptions(err error) error { return status.Wrap(err, "compile options") }

func (o *Options) readAssignment(b []byte) ([]int64, error) {
	replicas, partitions, err := readAssignmentSize(b)
	if err != nil {
		return nil, err
	}
	if replicas != o.Replicas || partitions != o.Partitions {
		return nil, status.New(status.InvalidArgument, "devices for %d replicas and %d partitions, want %d and %d",
			replicas, partitions, o.Replicas, o.Partitions)
	}
	ids := make([]int64, replicas*partitions)
	p := 0
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return nil, err
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
				return nil, err
			}
		}
		if p == partitions || len(column) != replicas {
			return nil, status.New(status.InvalidArgument, "partition %d has %d devices, want %d for each of %d partitions",
				p, len(column), replicas, partitions)
		}
		for r, id := range column {
			ids[r*partitions+p] = id
		}
		p++
	}
	if p != partitions {
		return nil, status.New(status.InvalidArgument, "devices for %d partitions, want %d", p, partitions)
	}
	return ids, nil
}

// readAssignmentSize reads how many replicas and partitions a
// DeviceAssignmentProto is for.
func readAssignmentSize(b []byte) (replicas, partitions int, err error) {
	for f, err := range protowalk.Fields(b) {
		if err != nil {
			return 0, 0, err
		}
		switch f.Number {
		case assignmentReplicas:
			replicas = int(int32(f.Value))
		case assignmentComputations:
			partitions = int(int32(f.Value))
		}
	}
	return replicas, partitions, nil
}

// WithAssignment gives the options with other devices, by rank; so they are not
// portable. All else stays.
func WithAssignment(options []byte, ids []int64) ([]byte, error) {
	o, err := ParseOptions(options)
	if err != nil {
		return nil, err
	}
	if len(ids) != o.Replicas*o.Partitions {
		return nil, badOptions(status.New(status.InvalidArgument, "%d devices for %d replicas and %d partitions",
			len(ids), o.Replicas, o.Partitions))
	}
	assignment := protowalk.AppendInt(nil, assignmentReplicas, int64(o.Replicas))
	assignment = protowalk.AppendInt(assignment, assignmentComputations, int64(o.Partitions))
	for p := range o.Partitions {
		column := make([]int64, o.Replicas)
		for r := range column {
			column[r] = ids[r*o.Partitions+p]
		}
		assignment = protowalk.AppendBytes(assignment, assignmentDevices, protowalk.AppendInts(nil, computationReplicaIDs, column...))
	}
	outer, build := takeBuild(options, compilePortable)
	build = without(build, buildDeviceAssignment, buildDeviceOrdinal)
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendBytes(build, buildDeviceAssignment, assignment)
	return protowalk.AppendBytes(outer, compileBuildOptions, build), nil
}

// OneDevice gives the options with which a program that Rewrite made is compiled
// out of the options it was partitioned with: for one replica and one partition
// on any device, by the compiler's last part alone, since the rest is done.
// Arguments and results lie in memory as the partitioned program has them. All
// else stays.
func (p *Program) OneDevice(options []byte) ([]byte, error) {
	if _, err := ParseOptions(options); err != nil {
		return nil, err
	}
	outer, build := takeBuild(options, compileArgumentLayouts, compilePortable)
	build = without(build, buildDeviceOrdinal, buildResultLayout, buildReplicas, buildPartitions, buildSPMD, buildAutoSPMD,
		buildDeviceAssignment, buildBackendOnly, buildShardy)
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendInt(build, buildReplicas, 1)
	build = protowalk.AppendInt(build, buildPartitions, 1)
	build = protowalk.AppendInt(build, buildBackendOnly, 1)
	if p.result != nil {
		build = protowalk.AppendBytes(build, buildResultLayout, p.result)
		for _, shape := range p.parameters {
			outer = protowalk.AppendBytes(outer, compileArgumentLayouts, shape)
		}
	}
	outer = protowalk.AppendBytes(outer, compileBuildOptions, build)
	return protowalk.AppendInt(outer, compilePortable, 1), nil
}

// takeBuild gives the build options and the fields beside them, but for drop. The
// options were read before.
func takeBuild(options []byte, drop ...protowalk.Number) (outer, build []byte) {
	for f := range protowalk.Fields(options) {
		if f.Number == compileBuildOptions {
			build = append(build, f.Bytes...)
		}
	}
	return without(options, append(drop, compileBuildOptions)...), build
}

func without(message []byte, drop ...protowalk.Number) (out []byte) {
	for f := range protowalk.Fields(message) {
		if !slices.Contains(drop, f.Number) {
			out = append(out, f.Raw...)
		}
	}
	return out
}
