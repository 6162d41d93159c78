// Package compileoptions reads and writes what XLA's compile options, a serialized
// xla.CompileOptionsProto, say of a program's devices. Whatever else they say stays as
// it stands, whether it is known here or not.
//
// It is pure: values only, no state. Whatever the bytes are, reading them ends, with
// an error of INVALID_ARGUMENT where they are no such options. Any package may import
// it.
package compileoptions

import (
	"bytes"
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/xla/protowalk"
)

// Field numbers of messages in XLA's xla/pjrt/proto/compile_options.proto,
// xla/xla.proto and xla/xla_data.proto.
const (
	compileArgumentLayouts = 1
	compileBuildOptions    = 3
	compilePortable        = 4
	compileOverrides       = 7 // a map

	buildDeviceOrdinal = 1
	buildResultLayout  = 2
	buildDebug         = 3
	buildReplicas      = 4
	buildPartitions    = 5
	buildSPMD          = 6
	buildAutoSPMD      = 7
	buildAssignment    = 9
	buildBackendOnly   = 11
	buildPropagateOut  = 12
	buildPropagateIn   = 18
	buildShardy        = 19

	debugLatencies = 357 // a map
	debugExtra     = 500 // a map

	mapKey   = 1
	mapValue = 2

	overrideString = 1

	assignmentReplicas     = 1
	assignmentComputations = 2
	assignmentDevices      = 3 // one a partition
	computationReplicaIDs  = 1
)

const maxDevices = 1 << 16 // of one program

// Options is what compile options say of a program's devices.
type Options struct {
	Replicas, Partitions int     // 1 where they do not say
	Devices              []int64 // ids by rank, replica*Partitions + partition; nil where they name none
	Portable             bool    // one shard, on any device: none is named
}

// Parse reads compile options.
func Parse(options []byte) (Options, error) {
	o := Options{Replicas: 1, Partitions: 1}
	if err := o.parse(options); err != nil {
		return Options{}, status.Wrap(err, "compile options")
	}
	return o, nil
}

func (o *Options) parse(options []byte) error {
	var build, assignment []byte
	for f, err := range protowalk.Fields(options) {
		if err != nil {
			return err
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
			return err
		}
		switch f.Number {
		case buildReplicas:
			o.Replicas = int(int64(f.Value))
		case buildPartitions:
			o.Partitions = int(int64(f.Value))
		case buildAssignment:
			assignment = append(assignment, f.Bytes...)
		}
	}
	if o.Replicas < 1 || o.Partitions < 1 || o.Replicas > maxDevices || o.Partitions > maxDevices/o.Replicas {
		return invalid("%d replicas of %d partitions, want at least 1 of each and at most %d devices", o.Replicas, o.Partitions, maxDevices)
	}
	if assignment == nil || o.Portable {
		return nil
	}
	o.Devices = make([]int64, o.Replicas*o.Partitions)
	p := 0
	for f, err := range protowalk.Fields(assignment) {
		if err != nil {
			return err
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
				return err
			}
		}
		if p == o.Partitions || len(column) != o.Replicas {
			return invalid("partition %d has %d devices, want %d for each of %d partitions", p, len(column), o.Replicas, o.Partitions)
		}
		for r, id := range column {
			o.Devices[r*o.Partitions+p] = id
		}
		p++
	}
	if p != o.Partitions {
		return invalid("devices for %d partitions, want %d", p, o.Partitions)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return status.New(status.InvalidArgument, format, args...)
}

// New writes compile options for replicas × partitions shards. Devices has the id of
// each shard's (device.Device.ID), replica by replica; nil leaves the choice to the
// plugin. A portable program has one shard and no device of its own: it runs on
// whatever device a run names (device.Run.Only).
func New(replicas, partitions int, devices []int, portable bool) []byte {
	var build []byte
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendInt(build, buildReplicas, int64(replicas))
	build = protowalk.AppendInt(build, buildPartitions, int64(partitions))
	if partitions > 1 {
		build = protowalk.AppendInt(build, buildSPMD, 1)
	}
	if portable {
		return protowalk.AppendInt(protowalk.AppendBytes(nil, compileBuildOptions, build), compilePortable, 1)
	}
	if len(devices) > 0 {
		ids := make([]int64, len(devices))
		for i, d := range devices {
			ids[i] = int64(d)
		}
		build = protowalk.AppendBytes(build, buildAssignment, assign(replicas, partitions, ids))
	}
	return protowalk.AppendBytes(nil, compileBuildOptions, build)
}

// assign writes a serialized xla.DeviceAssignmentProto.
func assign(replicas, partitions int, ids []int64) []byte {
	assignment := protowalk.AppendInt(nil, assignmentReplicas, int64(replicas))
	assignment = protowalk.AppendInt(assignment, assignmentComputations, int64(partitions))
	for p := range partitions {
		column := make([]int64, replicas)
		for r := range column {
			column[r] = ids[r*partitions+p]
		}
		assignment = protowalk.AppendBytes(assignment, assignmentDevices, protowalk.AppendInts(nil, computationReplicaIDs, column...))
	}
	return assignment
}

// WithDevices gives the options with other devices, by rank; so they are not
// portable. All else stays.
func WithDevices(options []byte, ids []int64) ([]byte, error) {
	o, err := Parse(options)
	if err != nil {
		return nil, err
	}
	if len(ids) != o.Replicas*o.Partitions {
		return nil, invalid("compile options: %d devices for %d replicas of %d partitions", len(ids), o.Replicas, o.Partitions)
	}
	outer, build := take(options, compilePortable)
	build = without(build, buildAssignment, buildDeviceOrdinal)
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendBytes(build, buildAssignment, assign(o.Replicas, o.Partitions, ids))
	return protowalk.AppendBytes(outer, compileBuildOptions, build), nil
}

// ByRank gives the options with devices named by their ranks, 0, 1, 2 and so on, and
// maps in the order of their keys, which each process writes in another: equal for equal
// programs on other devices and of other processes. Those that are portable name none.
// All else stays.
func ByRank(options []byte) ([]byte, error) {
	o, err := Parse(options)
	if err != nil {
		return nil, err
	}
	options = ordered(options)
	if o.Portable {
		outer, build := take(options)
		return protowalk.AppendBytes(outer, compileBuildOptions, without(build, buildAssignment)), nil
	}
	ids := make([]int64, o.Replicas*o.Partitions)
	for i := range ids {
		ids[i] = int64(i)
	}
	return WithDevices(options, ids)
}

// ordered gives the options, which were read before, with their maps in order.
func ordered(options []byte) []byte {
	outer, build := take(options)
	var debug []byte
	for f := range protowalk.Fields(build) {
		if f.Number == buildDebug {
			debug = append(debug, f.Bytes...)
		}
	}
	if debug != nil {
		build = protowalk.AppendBytes(without(build, buildDebug), buildDebug, inOrder(debug, debugLatencies, debugExtra))
	}
	return protowalk.AppendBytes(inOrder(outer, compileOverrides), compileBuildOptions, build)
}

// inOrder gives a message with the entries of these maps behind all else, by key. What
// is no message stays.
func inOrder(message []byte, maps ...protowalk.Number) []byte {
	type entry struct{ key, raw []byte }
	entries := make([][]entry, len(maps))
	for f, err := range protowalk.Fields(message) {
		if err != nil {
			return message
		}
		if i := slices.Index(maps, f.Number); i >= 0 {
			e := entry{raw: f.Raw}
			for k, err := range protowalk.Fields(f.Bytes) {
				if err == nil && k.Number == mapKey {
					e.key = k.Bytes
				}
			}
			entries[i] = append(entries[i], e)
		}
	}
	out := without(message, maps...)
	for _, all := range entries {
		slices.SortStableFunc(all, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
		for _, e := range all {
			out = append(out, e.raw...)
		}
	}
	return out
}

// OneDevice gives the options with which a program that was partitioned with these is
// compiled: for one shard on any device, by the compiler's last part alone, since the
// rest is done. Arguments and result, serialized xla.ShapeProtos, have the layouts of
// the partitioned program; a result of nil leaves them to the compiler. All else stays.
func OneDevice(options []byte, arguments [][]byte, result []byte) ([]byte, error) {
	if _, err := Parse(options); err != nil {
		return nil, err
	}
	outer, build := take(options, compileArgumentLayouts, compilePortable)
	build = without(build, buildDeviceOrdinal, buildResultLayout, buildReplicas, buildPartitions, buildSPMD, buildAutoSPMD,
		buildAssignment, buildBackendOnly, buildShardy)
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendInt(build, buildReplicas, 1)
	build = protowalk.AppendInt(build, buildPartitions, 1)
	build = protowalk.AppendInt(build, buildBackendOnly, 1)
	if result != nil {
		build = protowalk.AppendBytes(build, buildResultLayout, result)
		for _, shape := range arguments {
			outer = protowalk.AppendBytes(outer, compileArgumentLayouts, shape)
		}
	}
	outer = protowalk.AppendBytes(outer, compileBuildOptions, build)
	return protowalk.AppendInt(outer, compilePortable, 1), nil
}

// unneeded are the passes before the partitioner that a program does not need where each instruction says its sharding.
// One looks for shardings, and warns of its end. The others add instructions that have none, which only that one would
// mend, and without it XLA ends the process.
const unneeded = "sharding-propagation,conditional-canonicalizer,zero-sized-hlo-elimination"

// Manual gives the options with which a program is compiled of which each instruction says its sharding. Arguments and
// result, serialized xla.ShapeProtos, are those of the whole program, with the layouts that it has. All else stays.
func Manual(options []byte, arguments [][]byte, result []byte) ([]byte, error) {
	if _, err := Parse(options); err != nil {
		return nil, err
	}
	outer, build := take(options, compileArgumentLayouts)
	build = without(build, buildResultLayout, buildSPMD, buildAutoSPMD, buildPropagateOut, buildPropagateIn, buildShardy)
	build = protowalk.AppendInt(build, buildSPMD, 1)
	build = protowalk.AppendBytes(build, buildResultLayout, result)
	for _, shape := range arguments {
		outer = protowalk.AppendBytes(outer, compileArgumentLayouts, shape)
	}
	skip := protowalk.AppendBytes(nil, mapKey, "xla_disable_hlo_passes")
	skip = protowalk.AppendBytes(skip, mapValue, protowalk.AppendBytes(nil, overrideString, unneeded))
	outer = protowalk.AppendBytes(outer, compileOverrides, skip)
	return protowalk.AppendBytes(outer, compileBuildOptions, build), nil
}

// ManualAgain returns what Manual makes of the options that are given now, for a program that was compiled with stored,
// which Manual made.
//
// Errors: INVALID_ARGUMENT for options that are none.
func ManualAgain(stored, given []byte) ([]byte, error) {
	var arguments [][]byte
	var build, result []byte
	for f := range protowalk.Fields(stored) {
		switch f.Number {
		case compileArgumentLayouts:
			arguments = append(arguments, f.Bytes)
		case compileBuildOptions:
			build = append(build, f.Bytes...)
		}
	}
	for f := range protowalk.Fields(build) {
		if f.Number == buildResultLayout {
			result = f.Bytes
		}
	}
	return Manual(given, arguments, result)
}

// take gives the build options and the fields beside them, but for drop. The options
// were read before.
func take(options []byte, drop ...protowalk.Number) (outer, build []byte) {
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
