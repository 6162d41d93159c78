// Package compileoptions reads and writes the devices of a program in XLA's compile
// options, a serialized xla.CompileOptionsProto. It keeps all other fields as they are,
// whether it knows them or not.
//
// The package is pure: values only, no state. For any bytes, reading terminates, with
// INVALID_ARGUMENT if they are not such options.
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
	overrideBool   = 2
	overrideInt    = 3

	assignmentReplicas     = 1
	assignmentComputations = 2
	assignmentDevices      = 3 // one per partition
	computationReplicaIDs  = 1
)

const maxDevices = 1 << 16 // of one program

// Options holds what compile options specify about a program's devices.
type Options struct {
	Replicas, Partitions int     // 1 if not specified
	Devices              []int64 // ids by rank, replica*Partitions + partition; nil if not specified
	Portable             bool    // one shard that can run on any device; none is specified
}

// Parse parses compile options.
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
			build = append(build, f.Bytes...) // the pieces of a message add up
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
		return invalid("%d replicas of %d partitions, want at least 1 of each and at most %d devices", o.Replicas,
			o.Partitions, maxDevices)
	}
	if assignment == nil || o.Portable {
		return nil
	}
	return o.parseAssignment(assignment)
}

// parseAssignment reads which device each shard is for: a column of replicas for each partition.
func (o *Options) parseAssignment(assignment []byte) error {
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
		if err := protowalk.Read(f.Bytes, nil, protowalk.Lists{computationReplicaIDs: &column}); err != nil {
			return err
		}
		if p == o.Partitions || len(column) != o.Replicas {
			return invalid("partition %d has %d devices, want %d for each of %d partitions", p, len(column), o.Replicas,
				o.Partitions)
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

// New returns compile options for replicas × partitions shards. devices holds the device
// ID (device.Device.ID) of each shard, replica by replica; nil leaves the choice to the
// plugin. A portable program has one shard and no device of its own: it runs on the device
// that a run names (device.Run.Only).
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

// assign returns a serialized xla.DeviceAssignmentProto.
func assign(replicas, partitions int, ids []int64) []byte {
	assignment := protowalk.AppendInt(nil, assignmentReplicas, int64(replicas))
	assignment = protowalk.AppendInt(assignment, assignmentComputations, int64(partitions))
	for p := range partitions {
		column := make([]int64, replicas)
		for r := range column {
			column[r] = ids[r*partitions+p]
		}
		assignment = protowalk.AppendBytes(assignment, assignmentDevices,
			protowalk.AppendInts(nil, computationReplicaIDs, column...))
	}
	return assignment
}

// WithDevices returns the options with other devices, by rank, and not portable. All else
// stays.
func WithDevices(options []byte, ids []int64) ([]byte, error) {
	o, err := Parse(options)
	if err != nil {
		return nil, err
	}
	if len(ids) != o.Replicas*o.Partitions {
		return nil, invalid("compile options: %d devices for %d replicas of %d partitions", len(ids), o.Replicas,
			o.Partitions)
	}
	outer, build := take(options, compilePortable)
	build = without(build, buildAssignment, buildDeviceOrdinal)
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendBytes(build, buildAssignment, assign(o.Replicas, o.Partitions, ids))
	return protowalk.AppendBytes(outer, compileBuildOptions, build), nil
}

// ByRank returns the options with devices replaced by their ranks, 0, 1, 2 and so on, and
// with maps sorted by key, since their order differs from process to process. So the
// result is equal for equal programs of other processes or on other devices. Portable
// options name no devices. All else stays.
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

// ordered returns the options, which were parsed before, with their maps sorted.
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

// inOrder returns a message with the entries of these maps at the end, sorted by key. If
// message is malformed, it returns it unchanged.
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

// OneDevice returns options for compiling a program that was partitioned with options:
// for one shard on any device, and only by the compiler's last phase, since the others
// are done. arguments and result, serialized xla.ShapeProtos, have the layouts of the
// partitioned program; a nil result leaves its layout to the compiler. All else stays.
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

// unneeded lists the passes before the partitioner that a program does not need if each instruction has a sharding. The
// first one infers shardings, and prints a deprecation warning. The others add instructions without shardings, which
// only the first one would add, and without shardings XLA ends the process.
const unneeded = "sharding-propagation,conditional-canonicalizer,zero-sized-hlo-elimination"

// Manual returns options for compiling a program in which each instruction has a sharding. arguments and result,
// serialized xla.ShapeProtos, are those of the whole program, with its layouts. All else stays.
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
	outer = override(outer, "xla_disable_hlo_passes", protowalk.AppendBytes(nil, overrideString, unneeded))
	return protowalk.AppendBytes(outer, compileBuildOptions, build), nil
}

// ManualAgain returns the result of Manual for the options given, with the arguments and the result of stored, which
// Manual returned when the program was compiled.
//
// Errors: INVALID_ARGUMENT for malformed options.
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

// ModuleOnly returns options for compiling a program of which only the optimized module is wanted: LLVM, which comes
// after the passes that make it, need not optimize. All else stays.
func ModuleOnly(options []byte) []byte {
	options = override(slices.Clip(options), "xla_backend_optimization_level", protowalk.AppendInt(nil, overrideInt, 0))
	return override(options, "xla_llvm_disable_expensive_passes", protowalk.AppendInt(nil, overrideBool, 1))
}

// override appends a debug option of XLA to compile options. Of several values of an option, the last one counts.
func override(options []byte, name string, value []byte) []byte {
	entry := protowalk.AppendBytes(nil, mapKey, name)
	return protowalk.AppendBytes(options, compileOverrides, protowalk.AppendBytes(entry, mapValue, value))
}

// take returns the build options and the other fields, without drop. The options were
// parsed before.
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
