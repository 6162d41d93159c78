package controller

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// storedFacts are those of a store.
type storedFacts []storedFact

type storedFact struct {
	table string
	value []byte
}

func storedFactsOf(t testing.TB, k *Kept) (all storedFacts) {
	for i := range k.Links {
		all.add(t, TableLinks, k.Links[i].KeptLink)
	}
	addAll(t, &all, tableSessions, maps.Values(k.Sessions))
	addAll(t, &all, tablePrograms, slices.Values(k.Programs))
	addAll(t, &all, tableCompiled, maps.Values(k.Compiled))
	addAll(t, &all, tableLosses, slices.Values(k.Losses))
	addAll(t, &all, tableSlices, slices.Values(k.Slices))
	addAll(t, &all, tableIslands, slices.Values(k.Islands))
	addAll(t, &all, tableBoards, slices.Values(k.Boards))
	all.add(t, tableNumbers, k.Numbers)
	return all
}

func (all *storedFacts) add(t testing.TB, table string, m proto.Message) {
	*all = append(*all, storedFact{table, mustMarshal(t, m)})
}

func addAll[M proto.Message](t testing.TB, all *storedFacts, table string, messages iter.Seq[M]) {
	for m := range messages {
		all.add(t, table, m)
	}
}

// read is the argument of ReadKept.
func (all storedFacts) read(table string, each func(key string, value []byte) error) error {
	for i, e := range all {
		if e.table == table {
			if err := each(fmt.Sprint(i), e.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// damaged returns the facts with damage, each of three bytes: which fact, where, and the new byte there. Behind
// its end, the fact is removed or is there twice.
func (all storedFacts) damaged(by []byte) storedFacts {
	all = slices.Clone(all)
	for ; len(by) >= 3 && len(all) > 0; by = by[3:] {
		i, at := int(by[0])%len(all), int(by[1])
		switch e := &all[i]; {
		case at < len(e.value):
			e.value = slices.Clone(e.value)
			e.value[at] = by[2]
		case by[2] == 0:
			all = slices.Delete(all, i, i+1)
		default:
			all = append(all, *e)
		}
	}
	return all
}

// FuzzRestore starts a controller with facts that a damaged file has. It refuses them, or leaves out what does not fit
// together; then others join, and the next start reads what this one has kept.
func FuzzRestore(f *testing.F) {
	b := newBed(f, Config{Keeps: true}, 2, 1)
	b.program(2)
	stores := []storedFacts{storedFactsOf(f, b.facts())}
	hello := b.st.conns.Get(b.workers[1]).w.hello
	b.step(Event{Kind: Lost, Conn: b.workers[1], Err: errLeft})
	stores = append(stores, storedFactsOf(f, b.facts()))
	b.conns++
	b.step(Event{Kind: Join, Conn: b.conns, Message: hello})
	offered := b.facts()
	offered.Slices = []*wire.KeptSlice{
		{Session: 1, Request: &wire.SliceRequest{Slice: 1, Devices: 1}, Devices: []uint32{0}},
		{Session: 1, Request: &wire.SliceRequest{Slice: 2, Devices: 1}, Asked: 1, Until: 1e15, Arrived: 2},
	}
	offered.Boards = []*wire.KeptBoard{{Host: "host", Board: &wire.Board{Number: 1, Slot: 2, Path: "p"}}}
	stores = append(stores, storedFactsOf(f, offered))
	for i := range stores {
		f.Add(byte(i), []byte{})
		for fact := range stores[i] {
			f.Add(byte(i), []byte{byte(fact), 255, 0})  // is missing
			f.Add(byte(i), []byte{byte(fact), 255, 1})  // is there twice
			f.Add(byte(i), []byte{byte(fact), 0, 0x7a}) // has another field
			f.Add(byte(i), []byte{byte(fact), 1, 0xff})
		}
	}
	f.Fuzz(func(t *testing.T, store byte, damage []byte) {
		kept, err := ReadKept(stores[int(store)%len(stores)].damaged(damage).read)
		if err != nil {
			statustest.Fails(t, "the error", err, status.DataLoss, "does not decode", "move the file away")
			return
		}
		b := &bed{t: t, st: New(Config{Keeps: true, Starts: 2})}
		links := map[uint64]bool{}
		for i := range kept.Links { // as the server does
			b.conns++
			if kept.Links[i].Conn = b.conns; kept.Links[i].Hello == nil {
				kept.Links[i].Hello = new(wire.Hello)
			}
			links[b.conns] = true
		}
		refused, actions := b.st.Restore(kept)
		b.check(actions)
		for conn, why := range refused {
			if status.CodeOf(why) == status.Unknown || why.Error() == "" {
				t.Errorf("a process cannot come back, with code %v: %v", status.CodeOf(why), why)
			}
			delete(links, conn)
		}
		for conn := range links {
			b.check(b.step(Event{Kind: Lost, Conn: conn, Err: errors.New("it burnt")}))
		}
		statustest.Equal(t, b.st.IsComingBack(), false, "it waits for those that have gone")
		worker := b.joinWorker("new", 1)
		b.conns++
		client := b.conns
		b.check(b.step(Event{Kind: Join, Conn: client, Message: &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: "new"}}))
		if w, c := b.st.conns.Get(worker), b.st.conns.Get(client); w == nil || w.w == nil || c == nil || c.s == nil {
			t.Fatal("others cannot join")
		}
		again := statustest.Value(ReadKept(storedFactsOf(t, b.facts()).read)).OK(t)
		for i := range again.Links {
			again.Links[i].Conn = uint64(i + 1)
		}
		next := New(Config{Keeps: true, Starts: 3})
		refused, _ = next.Restore(again)
		statustest.OK(t, next.Check())
		if len(refused) > 0 {
			t.Errorf("the start behind it refuses %v", refused)
		}
	})
}
