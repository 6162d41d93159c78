//go:build !race && !invariants

package controller

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// long is a message of a kind that a controller gets, whose field of any length is so long.
type long struct {
	name   string
	worker bool // says it; else the client
	kind   wire.Kind
	then   outcome // where it just fits into a frame
	m      func(text string) proto.Message
}

// outcome is what becomes of a message.
type outcome string

const (
	passed  outcome = "passed on"
	refused outcome = "refused with a sentence"
	taken   outcome = "taken in"
)

// fill has a controller get the message, in which a text is.
func (c *long) fill(t *testing.T, text string) outcome {
	t.Helper()
	b := newBed(t, Config{}, 1, 1)
	b.program(1)
	from := b.client
	if c.worker {
		from = b.workers[0]
	}
	switch c.kind {
	case wire.KindCompiled:
		b.say(b.client, wire.KindCompile, compile(func(*wire.Compile) {}))
	case wire.KindPlay:
		b.say(b.client, wire.KindGraph, &wire.Graph{Graph: 1, Inputs: 1, Nodes: []*wire.Node{{Makes: 1,
			Run: &wire.Run{Program: 1, Inputs: []uint64{1}}}}})
	case wire.KindProfiled:
		b.say(b.client, wire.KindProfile, &wire.Profile{Id: 1})
	}
	message := c.m(text)
	if n := proto.Size(message); n > wire.MaxFrame || len(text) > 0 && n > 1<<20 && n < 60<<20 {
		t.Errorf("%s has %d bytes", c.name, n)
	}
	all := slices.Clone(b.say(from, c.kind, message))
	if c.kind == wire.KindGraph {
		play := &wire.Play{Op: 2, Graph: 1, Nodes: 1, First: 2, Inputs: []uint64{1}}
		all = append(all, b.say(b.client, wire.KindPlay, play)...)
	}
	all = append(all, b.step(Event{Kind: Flush})...)
	statustest.Checkf(t, b.st.Check(), "%s", c.name)
	out := taken
	for _, a := range all {
		size := len(a.Payload)
		if a.Late != nil {
			size = a.Late.Size
		}
		switch {
		case a.Kind == Close:
			t.Errorf("%s of %d bytes ends a connection", c.name, len(text))
		case a.Err != nil && len(a.Err.Error()) > 20<<10:
			t.Errorf("%s of %d bytes logs %d", c.name, len(text), len(a.Err.Error()))
		case a.Kind != Send:
		case size > wire.MaxFrame:
			t.Errorf("%s of %d bytes makes a message of kind %d with %d", c.name, len(text), a.Wire, size)
		case size > 60<<20 || a.Wire == wire.KindDispatch:
			out = passed
		case refusal(t, a):
			out = refused
		}
	}
	return out
}

// refusal reports whether a message tells a client of an error.
func refusal(t *testing.T, a Action) bool {
	t.Helper()
	var e *wire.Status
	read := func(m proto.Message) {
		statustest.OK(t, proto.Unmarshal(sent(a), m))
	}
	switch a.Wire {
	case wire.KindCompiled:
		m := new(wire.Compiled)
		read(m)
		e = m.Status
	case wire.KindSliceAnswer:
		m := new(wire.SliceAnswer)
		read(m)
		e = m.Status
	case wire.KindCompleted:
		m := new(wire.Completed)
		if read(m); len(m.Failed) > 0 {
			e = m.Failed[0].Status
		}
	}
	return e != nil && len(e.Message) > 20
}

func named(text string) *wire.Array { return &wire.Array{Dtype: uint32(shape.F32), Memory: text} }

// numbers are so many numbers that they take the bytes of a text.
func numbers(text string) []uint64 {
	list := make([]uint64, len(text)/10)
	for i := range list {
		list[i] = 1<<63 + uint64(i)
	}
	return list
}

// pieces are so many pieces of an array that they take the bytes of a text.
func pieces(text string) []*wire.Piece {
	list := make([]*wire.Piece, len(text)/15)
	for i := range list {
		list[i] = &wire.Piece{Object: 1<<63 + uint64(i), Rows: 1}
	}
	return list
}

// dims are numbers, as dimensions.
func dims(text string) []int64 {
	list := make([]int64, len(text)/9)
	for i := range list {
		list[i] = 1 << 60
	}
	return list
}

// allLong are all messages to a controller, each with each of its fields that may be long.
var allLong = []long{
	{"compile: format", false, wire.KindCompile, refused, func(s string) proto.Message {
		return compile(func(m *wire.Compile) { m.Format = s })
	}},
	{"compile: code", false, wire.KindCompile, refused, func(s string) proto.Message {
		return compile(func(m *wire.Compile) { m.Code = []byte(s) })
	}},
	{"compile: options", false, wire.KindCompile, refused, func(s string) proto.Message {
		return compile(func(m *wire.Compile) { m.Options = append(m.Options, s...) })
	}},
	{"compile: handlers", false, wire.KindCompile, refused, func(s string) proto.Message {
		return compile(func(m *wire.Compile) {
			m.Handlers = []*wire.Handler{{Target: "t", Stages: []*wire.Symbol{{Library: s}}}}
		})
	}},
	{"compiled: name", true, wire.KindCompiled, taken, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Info.Name = s })
	}},
	{"compiled: fingerprint", true, wire.KindCompiled, refused, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Info.Fingerprint = s })
	}},
	{"compiled: outputs", true, wire.KindCompiled, refused, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Info.Outputs = []*wire.Array{named(s)} })
	}},
	{"compiled: parameters", true, wire.KindCompiled, refused, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Info.Parameters = []*wire.Array{named(s)} })
	}},
	{"compiled: optimized", true, wire.KindCompiled, taken, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Info.Optimized = []byte(s) })
	}},
	{"compiled: loadable", true, wire.KindCompiled, refused, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Loadable.Code = []byte(s) })
	}},
	{"compiled: error", true, wire.KindCompiled, refused, func(s string) proto.Message {
		return compiledTo(func(m *wire.Compiled) { m.Status = &wire.Status{Code: uint32(status.Internal), Message: s} })
	}},
	{"run: trace", false, wire.KindRun, refused, func(s string) proto.Message {
		return &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: []uint64{1}, Trace: []byte(s)}
	}},
	{"run: inputs", false, wire.KindRun, refused, func(s string) proto.Message {
		return &wire.Run{Op: 2, Program: 1, FirstOutput: 2, Inputs: append([]uint64{1}, numbers(s)...)}
	}},
	{"put", false, wire.KindPut, refused, func(s string) proto.Message {
		return &wire.Put{Op: 2, Object: 2, Devices: []uint32{0}, Array: named(s)}
	}},
	{"transfer", false, wire.KindTransfer, refused, func(s string) proto.Message {
		return &wire.Transfer{Op: 2, Object: 2, Array: named(s), Moves: []*wire.Move{{Source: 1}}}
	}},
	{"fetch", false, wire.KindFetch, passed, func(string) proto.Message { return &wire.Fetch{Op: 2, Object: 1} }},
	{"free", false, wire.KindFree, taken, func(s string) proto.Message { return &wire.Free{Objects: numbers(s)} }},
	{"assemble", false, wire.KindAssemble, taken, func(s string) proto.Message {
		return &wire.Assemble{Object: 2, Program: 1, Pieces: pieces(s)}
	}},
	{"forget", false, wire.KindForget, taken, func(s string) proto.Message { return &wire.Forget{Programs: numbers(s)} }},
	{"graph", false, wire.KindGraph, refused, func(s string) proto.Message {
		return &wire.Graph{Graph: 1, Inputs: 1, Nodes: []*wire.Node{{Makes: 1,
			Run: &wire.Run{Program: 1, Inputs: []uint64{1}, Trace: []byte(s)}}}}
	}},
	{"play", false, wire.KindPlay, refused, func(s string) proto.Message {
		return &wire.Play{Op: 2, Graph: 1, Nodes: 1, First: 2, Inputs: append([]uint64{1}, numbers(s)...)}
	}},
	{"abort", false, wire.KindAbort, taken, func(s string) proto.Message {
		return &wire.Abort{Gang: 2, Status: &wire.Status{Code: uint32(status.Internal), Message: s}}
	}},
	{"profile", false, wire.KindProfile, taken, func(string) proto.Message { return &wire.Profile{Id: 1} }},
	{"trace", false, wire.KindTrace, taken, func(s string) proto.Message { return &wire.Trace{Data: []byte(s)} }},
	{"slice request", false, wire.KindSliceRequest, refused, func(s string) proto.Message {
		return &wire.SliceRequest{Slice: 1, Devices: 1, Kind: s}
	}},
	{"slice release", false, wire.KindSliceRelease, taken, func(s string) proto.Message {
		return &wire.SliceRelease{Slices: numbers(s)}
	}},
	{"heartbeat: waits", true, wire.KindHeartbeat, taken, func(s string) proto.Message {
		return &wire.Heartbeat{Standing: []*wire.Standing{{Program: "p", At: s}},
			Running: []*wire.Running{{Program: "p", Line: "l"}}}
	}},
	{"heartbeat: running", true, wire.KindHeartbeat, taken, func(s string) proto.Message {
		return &wire.Heartbeat{Running: []*wire.Running{{Session: 1, Program: s, Line: "l"}}}
	}},
	{"heartbeat: apart", true, wire.KindHeartbeat, taken, func(s string) proto.Message {
		return &wire.Heartbeat{Apart: []*wire.Apart{{Process: 2, Name: "n", Why: s}}}
	}},
	{"heartbeat: links", true, wire.KindHeartbeat, taken, func(s string) proto.Message {
		return &wire.Heartbeat{Links: []*wire.PeerLink{{Process: 2, Name: "n", Why: s}}}
	}},
	{"completed: errors", true, wire.KindCompleted, taken, func(s string) proto.Message {
		return &wire.Completed{Failed: []*wire.Failure{{Number: 1,
			Status: &wire.Status{Code: uint32(status.Internal), Message: s}}}}
	}},
	{"host call", true, wire.KindHostCall, passed, func(s string) proto.Message {
		return &wire.HostCall{Session: 1, Arguments: []*wire.HostValue{{Dims: dims(s)}}}
	}},
	{"profiled", true, wire.KindProfiled, passed, func(s string) proto.Message {
		return &wire.Profiled{Id: 1, Session: 1, Worker: 1, Status: &wire.Status{Code: uint32(status.Internal), Message: s}}
	}},
	{"want", true, wire.KindWant, taken, func(string) proto.Message { return &wire.Want{Artifact: 1} }},
	{"have", true, wire.KindHave, taken, func(string) proto.Message { return &wire.Have{Artifact: 1} }},
	{"doing", true, wire.KindDoing, taken, func(text string) proto.Message {
		return &wire.Doing{Programs: []string{text}}
	}},
	{"loaded", true, wire.KindLoaded, taken, func(string) proto.Message { return &wire.Loaded{Session: 1, Program: 1} }},
}

// elsewhere are the kinds that a controller does not get but sends, or that others send, and what bounds them.
var elsewhere = map[wire.Kind]string{
	wire.KindHello:      "the first message of a connection is short, see transport.ShortFrame",
	wire.KindWelcome:    "grows with the devices of the cluster alone",
	wire.KindGoodbye:    "an error, which is cut",
	wire.KindReceived:   "a number",
	wire.KindRestarted:  "is never sent",
	wire.KindRejoin:     "see TestWorkerRejoinsWithManyLongErrors, and TestRejoinWithALongMessage in core/client",
	wire.KindWait:       "a sentence, with the names of three processes at most",
	wire.KindSettled:    "numbers, which go on to workers as they are: the message is no longer than it came",
	wire.KindLoad:       "what was compiled, which is bounded beside its places",
	wire.KindCompiling:  "names a worker",
	wire.KindHeld:       "names sessions",
	wire.KindGive:       "numbers",
	wire.KindSource:     "numbers, or an error, which is cut",
	wire.KindBurst:      "of short messages",
	wire.KindDispatch:   "an operation, which is bounded beside it",
	wire.KindPeers:      "see TestWorkersAreToldOfManyThings",
	wire.KindDrop:       "an error, which is cut",
	wire.KindWatch:      "numbers of devices of a worker",
	wire.KindRebind:     "grows with the session's devices alone, and the answer to it is a number",
	wire.KindSession:    "grows with the devices of its worker alone",
	wire.KindPlayed:     "a play, which is bounded beside it",
	wire.KindAsk:        "nothing",
	wire.KindReport:     "see TestOutboxTellsOfAMessageThatIsTooLong",
	wire.KindEpoch:      "an error, which is cut",
	wire.KindKeyRequest: "see TestValuesOfAllSizes in core/epoch",
	wire.KindKeyAnswer:  "the same",

	wire.KindSliceAnswer: "devices, or an error, which is cut",
	wire.KindBulk:        "of links, see transport/bulk",
}

// kinds are the kinds that package wire declares.
func kinds(t *testing.T) map[string]wire.Kind {
	t.Helper()
	file := statustest.Value(parser.ParseFile(token.NewFileSet(), "../wire/wire.go", nil, 0)).OK(t)
	all := map[string]wire.Kind{}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Kind") {
			number := statustest.Value(strconv.Atoi(v.Values[0].(*ast.BasicLit).Value)).OK(t)
			all[v.Names[0].Name] = wire.Kind(number)
		}
		return true
	})
	return all
}

// Each message to a controller that just fits into a frame, whichever field makes it long, is passed on, refused with a
// sentence, or taken in. None causes a message that is too long for a frame, and a refusal reaches its sender alone.
func TestMessagesThatFillAFrame(t *testing.T) {
	known := map[wire.Kind]bool{}
	for kind := range elsewhere {
		known[kind] = true
	}
	text := strings.Repeat("x", wire.MaxFrame-1000)
	for _, c := range allLong {
		known[c.kind] = true
		c.fill(t, "")
		statustest.Equal(t, c.fill(t, text), c.then, "%s: what it does", c.name)
	}
	for name, kind := range kinds(t) {
		if !known[kind] {
			t.Errorf("%s is in neither table", name)
		}
	}
}
