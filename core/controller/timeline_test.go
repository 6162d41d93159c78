package controller

import (
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
	"testing"
)

// look looks at what devices do, and returns what workers are told to tell, by connection.
func (b *bed) look(l *wire.Look) (t *wire.Timeline, watches map[uint64]*wire.Watch) {
	rows, devices := b.st.Choose(l)()
	watches = map[uint64]*wire.Watch{}
	for _, a := range b.step(Event{Kind: Look, Rows: rows}) {
		if a.Kind == Send && a.Wire == wire.KindWatch {
			m := wiretest.Decode[wire.Watch](b.t, sent(a))
			watches[a.To[0]] = m
		}
	}
	t = b.st.Timeline(rows, l.After)
	t.Devices = uint64(devices)
	return t, watches
}

func TestALookHasWorkersTellWhatTheirDevicesDo(t *testing.T) {
	b := newBed(t, Config{}, 2, 40)
	b.say(b.workers[0], wire.KindDoing, &wire.Doing{NowNs: 1})
	seen, watches := b.look(&wire.Look{First: 10, Most: 100})
	if n := len(seen.Rows); n != 2 || seen.Devices != 80 || len(seen.Rows[0].Doing) > 0 {
		t.Fatalf("the first look finds %v", seen)
	}
	if got := watches[b.workers[0]]; len(got.GetDevices()) != 30 || got.Devices[0] != 10 || got.Bars != 32<<10/64 {
		t.Errorf("the first worker is told %v, expected devices 10 to 39", got)
	}
	if got := watches[b.workers[1]]; len(got.GetDevices()) != 34 || got.Devices[33] != 33 {
		t.Errorf("the second worker is told %v, expected devices 0 to 33", got)
	}
	_, again := b.look(&wire.Look{Worker: 1, Most: 64})
	if len(again[b.workers[0]].GetDevices()) != 10 || len(again) != 1 {
		t.Errorf("a look soon after has told %v, expected the ten devices that do not tell yet", again)
	}
	b.now += 2e9
	b.say(b.workers[0], wire.KindDoing, &wire.Doing{NowNs: 100})
	b.say(b.workers[1], wire.KindDoing, &wire.Doing{NowNs: 5})
	b.now += 1e9
	at := b.now
	b.now += 5e6 // it was under way for longer than the first
	b.say(b.workers[0], wire.KindDoing, &wire.Doing{NowNs: 100 + 1e9})
	seen, _ = b.look(&wire.Look{Most: 1})
	if got := seen.Rows[0].Doing; len(got) != 2 || got[1].NowNs+got[1].AheadNs > at+1e6 || seen.Newest != 3 {
		t.Errorf("it is known %v, expected two, and that the second was said at about %d", seen, at)
	}
	if seen, _ = b.look(&wire.Look{Most: 64, After: 1}); len(seen.Rows[0].Doing) != 1 || len(seen.Rows[1].Doing) != 1 {
		t.Errorf("after the first, %v is known", seen)
	}
	if seen, _ = b.look(&wire.Look{Island: "other", Most: 64}); seen.Devices != 0 {
		t.Errorf("on another island, %v is known", seen)
	}
	b.now += 6e9
	b.step(Event{Kind: Tick})
	b.say(b.workers[0], wire.KindDoing, &wire.Doing{NowNs: 7e9})
	if seen, _ = b.look(&wire.Look{Most: 64}); len(seen.Rows[0].Doing) != 0 {
		t.Errorf("when no browser has looked for a while, %v is known", seen)
	}
}
