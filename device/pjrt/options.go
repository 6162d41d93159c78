package pjrt

import "google.golang.org/protobuf/encoding/protowire"

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
	build = appendInt(build, buildDeviceOrdinal, -1)
	build = appendInt(build, buildReplicas, int64(replicas))
	build = appendInt(build, buildPartitions, int64(partitions))
	if partitions > 1 {
		build = appendInt(build, buildSPMD, 1)
	}
	if len(devices) > 0 && !portable {
		var assignment []byte
		assignment = appendInt(assignment, assignmentReplicas, int64(replicas))
		assignment = appendInt(assignment, assignmentComputations, int64(partitions))
		for p := range partitions {
			var ids []byte
			for r := range replicas {
				ids = protowire.AppendVarint(ids, uint64(devices[r*partitions+p]))
			}
			assignment = appendBytes(assignment, assignmentDevices, appendBytes(nil, computationReplicaIDs, ids))
		}
		build = appendBytes(build, buildDeviceAssignment, assignment)
	}
	options := appendBytes(nil, compileBuildOptions, build)
	if portable {
		options = appendInt(options, compilePortable, 1)
	}
	return options
}

func appendInt(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}
