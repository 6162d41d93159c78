package controller

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// messages makes a message of each kind that a controller may be sent.
var messages = [1 << 8]func() proto.Message{
	wire.KindRun:          empty[wire.Run],
	wire.KindCompleted:    empty[wire.Completed],
	wire.KindFree:         empty[wire.Free],
	wire.KindAssemble:     empty[wire.Assemble],
	wire.KindPut:          empty[wire.Put],
	wire.KindFetch:        empty[wire.Fetch],
	wire.KindGraph:        empty[wire.Graph],
	wire.KindPlay:         empty[wire.Play],
	wire.KindTransfer:     empty[wire.Transfer],
	wire.KindCompile:      empty[wire.Compile],
	wire.KindCompiled:     empty[wire.Compiled],
	wire.KindWant:         empty[wire.Want],
	wire.KindHave:         empty[wire.Have],
	wire.KindLoaded:       empty[wire.Loaded],
	wire.KindForget:       empty[wire.Forget],
	wire.KindAbort:        empty[wire.Abort],
	wire.KindRebind:       empty[wire.Rebind],
	wire.KindRejoin:       empty[wire.Rejoin],
	wire.KindSettled:      empty[wire.Settled],
	wire.KindHostCall:     empty[wire.HostCall],
	wire.KindProfile:      empty[wire.Profile],
	wire.KindProfiled:     empty[wire.Profiled],
	wire.KindDoing:        empty[wire.Doing],
	wire.KindTrace:        empty[wire.Trace],
	wire.KindSliceRequest: empty[wire.SliceRequest],
	wire.KindSliceRelease: empty[wire.SliceRelease],
	wire.KindHeartbeat:    empty[wire.Heartbeat],
	wire.KindGoodbye:      empty[wire.Goodbye],
	wire.KindAsk:          empty[wire.Ask],
}

func empty[M any, P interface {
	*M
	proto.Message
}]() proto.Message {
	return P(new(M))
}

// Decode reads a message that a controller may be sent.
func Decode(kind wire.Kind, payload []byte) (proto.Message, error) {
	message := messages[kind]
	if message == nil {
		return nil, status.New(status.InvalidArgument, "a message of kind %v is not for a controller", kind)
	}
	m := message()
	if run, ok := m.(*wire.Run); ok { // what every computation costs
		err := run.Parse(payload)
		run.Trace = bytes.Clone(run.Trace) // the payload does not last
		return m, err
	}
	return m, wire.Decode(kind, payload, m)
}
