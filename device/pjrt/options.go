package pjrt

import "github.com/openpathways/pathways/core/protowalk"

// Field numbers of XLA's xla/pjrt/proto/compile_options.proto and
// xla/xla_data.proto.
const (
	compileBuildOptions = 3
	compilePortable     = 4

	buildDeviceOrdinal    = 1
	buildReplicas         = 4
	buildPartitions       = 5
	buildSPMD             = 6
	buildDeviceAssignment = 9

	assignmentReplicas     = 1
	assignmentComputations = 2
	assignmentDevices      = 3
	computationReplicaIDs  = 1
)

// CompileOptions writes a serialized xla.CompileOptionsProto for replicas ×
// partitions shards, as Driver.Compile takes it. devices holds the global
// device id (device.Device.ID) of each shard, replica by replica; nil leaves the
// choice to the plugin. A portable computation has one shard and no device of
// its own: it runs on whatever device a run names (device.Run.Only).
func CompileOptions(replicas, partitions int, devices []int, portable bool) []byte {
	var build []byte
	build = protowalk.AppendInt(build, buildDeviceOrdinal, -1)
	build = protowalk.AppendInt(build, buildReplicas, int64(replicas))
	build = protowalk.AppendInt(build, buildPartitions, int64(partitions))
	if partitions > 1 {
		build = protowalk.AppendInt(build, buildSPMD, 1)
	}
	if len(devices) > 0 && !portable {
		var assignment []byte
		assignment = protowalk.AppendInt(assignment, assignmentReplicas, int64(replicas))
		assignment = protowalk.AppendInt(assignment, assignmentComputations, int64(partitions))
		for p := range partitions {
			ids := make([]int64, replicas)
			for r := range replicas {
				ids[r] = int64(devices[r*partitions+p])
			}
			assignment = protowalk.AppendBytes(assignment, assignmentDevices, protowalk.AppendInts(nil, computationReplicaIDs, ids...))
		}
		build = protowalk.AppendBytes(build, buildDeviceAssignment, assignment)
	}
	options := protowalk.AppendBytes(nil, compileBuildOptions, build)
	if portable {
		options = protowalk.AppendInt(options, compilePortable, 1)
	}
	return options
}
