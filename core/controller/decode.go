package controller

import (
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// decode reads a message that a controller may be sent.
func decode(kind wire.Kind, payload []byte) (proto.Message, error) {
	var m proto.Message
	switch kind {
	case wire.KindRun:
		m = new(wire.Run)
	case wire.KindCompleted:
		m = new(wire.Completed)
	case wire.KindFree:
		m = new(wire.Free)
	case wire.KindAssemble:
		m = new(wire.Assemble)
	case wire.KindPut:
		m = new(wire.Put)
	case wire.KindFetch:
		m = new(wire.Fetch)
	case wire.KindGraph:
		m = new(wire.Graph)
	case wire.KindPlay:
		m = new(wire.Play)
	case wire.KindTransfer:
		m = new(wire.Transfer)
	case wire.KindCompile:
		m = new(wire.Compile)
	case wire.KindCompiled:
		m = new(wire.Compiled)
	case wire.KindWant:
		m = new(wire.Want)
	case wire.KindHave:
		m = new(wire.Have)
	case wire.KindLoaded:
		m = new(wire.Loaded)
	case wire.KindForget:
		m = new(wire.Forget)
	case wire.KindAbort:
		m = new(wire.Abort)
	case wire.KindRebind:
		m = new(wire.Rebind)
	case wire.KindRejoin:
		m = new(wire.Rejoin)
	case wire.KindSettled:
		m = new(wire.Settled)
	case wire.KindHostCall:
		m = new(wire.HostCall)
	case wire.KindProfile:
		m = new(wire.Profile)
	case wire.KindProfiled:
		m = new(wire.Profiled)
	case wire.KindDoing:
		m = new(wire.Doing)
	case wire.KindTrace:
		m = new(wire.Trace)
	case wire.KindSliceRequest:
		m = new(wire.SliceRequest)
	case wire.KindSliceRelease:
		m = new(wire.SliceRelease)
	case wire.KindHeartbeat:
		m = new(wire.Heartbeat)
	case wire.KindGoodbye:
		m = new(wire.Goodbye)
	case wire.KindAsk:
		m = new(wire.Ask)
	default:
		return nil, status.New(status.InvalidArgument, "a message of kind %d is not for a controller", kind)
	}
	return m, wire.Decode(kind, payload, m)
}
