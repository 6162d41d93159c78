package controller

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/wire"
)

// traffic is what an operation sends: messages with their bytes, headers included.
type traffic struct {
	asks    int // bytes of the client's message
	out     int // messages to workers
	outMost int // bytes of those to the worker that gets most
	back    int // messages from workers
	end     int // bytes of what the client is told at the end
}

func (tr traffic) String() string {
	return fmt.Sprintf("%d | %d | %d | %d | %d |", tr.asks, tr.out, tr.outMost, tr.back, tr.end)
}

// perform has the client submit an operation and all workers report it.
func (b *bed) perform(kind wire.Kind, m proto.Message) (tr traffic) {
	b.t.Helper()
	tr.asks = wire.Header + proto.Size(m)
	by := map[uint64]int{}
	for _, a := range b.say(b.client, kind, m) {
		if a.Kind != Send {
			continue
		}
		for _, to := range a.To {
			tr.out++
			by[to] += wire.Header + len(a.Payload)
			tr.outMost = max(tr.outMost, by[to])
		}
	}
	done := mustMarshal(b.t, &wire.Completed{Ok: []uint64{b.st.gang}})
	for to := range by {
		tr.back++
		b.frame(to, wire.KindCompleted, done)
	}
	for _, a := range b.step(Event{Kind: Flush}) {
		tr.end += wire.Header + len(a.Payload)
	}
	if b.st.gangs.Len() > 0 {
		b.t.Fatalf("an operation of kind %d has not ended", kind)
	}
	return tr
}

// What a sharded put, a run and a transfer send for 8 to 4,096 shards, on hosts of 8 devices each: one message to each
// host and one back, whose bytes grow with the host's own shards alone. docs/design/growth.md has the table, which -v
// prints.
func TestMessagesGrowWithHosts(t *testing.T) {
	const onHost = 8
	array := &wire.Array{Dtype: uint32(shape.F32), Dims: []int64{1024, 1024}}
	var table strings.Builder
	first := map[string]traffic{}
	for shards := uint32(8); shards <= 4096; shards *= 8 {
		hosts := int(shards) / onHost
		b := newBed(t, Config{}, hosts, onHost)
		b.program(int(shards))
		op := uint64(1)
		next := func() uint64 { op++; return op }
		all := make([]uint32, shards)
		for d := range shards {
			all[d] = d
		}
		put := &wire.Put{Op: next(), Object: op, Array: array, Devices: all}
		run := &wire.Run{Op: next(), Program: 1, FirstOutput: op, Inputs: []uint64{put.Object}}
		// To the devices of the next host, as between stages of a pipeline.
		whole := &wire.Transfer{Op: next(), Object: op, Array: array}
		for d := range shards {
			whole.Moves = append(whole.Moves, &wire.Move{Source: put.Object, From: d, To: (d + onHost) % shards})
		}
		// From rows to columns among the eight of each host and the next: each device sends regions to two.
		regions := &wire.Transfer{Op: next(), Object: op, Array: array}
		for d := range shards {
			for k := range uint32(2) {
				regions.Moves = append(regions.Moves, &wire.Move{Source: put.Object, From: d, To: (d + k*onHost) % shards,
					Start: []int64{0, int64(128 * k)}, Size: []int64{1024, 128}, At: []int64{0, int64(128 * k)}, Shard: array})
			}
		}
		for _, o := range []struct {
			name string
			kind wire.Kind
			m    proto.Message
		}{{"put", wire.KindPut, put}, {"run", wire.KindRun, run}, {"transfer of shards", wire.KindTransfer, whole},
			{"transfer of regions", wire.KindTransfer, regions}} {
			got := b.perform(o.kind, o.m)
			fmt.Fprintf(&table, "| %s | %d | %d | %v\n", o.name, shards, hosts, got)
			if got.out != hosts || got.back != hosts {
				t.Errorf("%s of %d shards on %d hosts: %d messages to workers, %d back", o.name, shards, hosts, got.out, got.back)
			}
			if shards == onHost {
				first[o.name] = got
			}
			// Other hosts' devices take part in moves, so a host that is not alone has twice as many. Numbers of
			// thousands of devices take a byte or two more than those of eight, and a move has its index.
			moves := 0
			if m, is := o.m.(*wire.Transfer); is {
				moves = 2 * len(m.Moves) / hosts
			}
			const longer = 8 // bytes of a move's numbers
			if most := first[o.name].outMost*max(1, min(2, moves)) + longer*(onHost+moves); got.outMost > most {
				t.Errorf("%s of %d shards: a host is sent %d bytes, want at most %d", o.name, shards, got.outMost, most)
			}
		}
	}
	t.Logf("\n| operation | shards | hosts | client's message, bytes | messages to hosts | bytes to a host | "+
		"messages back | bytes back to the client |\n|---|---:|---:|---:|---:|---:|---:|---:|\n%s", table.String())
}

// What workers are told before their first run: of the session, of its programs, and of each other. If the devices of a
// program do not wait for each other, it grows with a host's own shards alone; where they do, the first
// one on these devices grows with the hosts that exchange bytes. docs/design/growth.md has the table, which -v prints.
func TestWorkersAreToldWhatTheyUse(t *testing.T) {
	const onHost = 8
	var table strings.Builder
	for _, waits := range []bool{false, true} {
		var first [3]int
		for shards := 8; shards <= 4096; shards *= 8 {
			hosts := shards / onHost
			b := newBed(t, Config{}, hosts, onHost)
			for i, name := range []string{"first", "next", "another session's"} {
				by, messages, client := map[uint64]int{}, 0, b.client
				var actions []Action
				if i < 2 {
					actions = b.install(uint64(i+1), shards, waits)
				} else {
					client = b.joinClient()
					actions = b.say(client, wire.KindCompile, compileOf(1, shards))
				}
				for _, a := range actions {
					if a.Kind == Send && a.To[0] != client {
						messages += len(a.To)
						for _, to := range a.To {
							by[to] += wire.Header + len(sent(a))
						}
					}
				}
				most, all := 0, 0
				for _, bytes := range by {
					most, all = max(most, bytes), all+bytes
				}
				fmt.Fprintf(&table, "| %s | %v | %d | %d | %d | %d | %d |\n", name, waits, shards, hosts, messages/hosts, most, all)
				if shards == onHost {
					first[i] = most
				}
				bound := first[i] + 12 // numbers of thousands of devices take some bytes more
				if waits && i == 0 {
					bound += 32 * hosts
				}
				if most > bound || len(by) != hosts {
					t.Errorf("the %s program on %d hosts, whose devices wait for each other: %v: %d hosts are told, at most %d bytes "+
						"each, want %d", name, hosts, waits, len(by), most, bound)
				}
			}
		}
	}
	t.Logf("\n| program | its devices wait for each other | shards | hosts | messages to a host | bytes to a host | "+
		"bytes to all |\n|---|---|---:|---:|---:|---:|---:|\n%s", table.String())
}
