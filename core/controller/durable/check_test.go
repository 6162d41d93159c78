package durable

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// tables are those of some facts, and contents what they have: by table and key.
var tables = []string{string(identity), "few", "links", "none", "programs"}

type contents map[string]string

func contentsOf(t *testing.T, s *Store) contents {
	t.Helper()
	all := contents{}
	for _, table := range tables[1:] {
		for key, value := range facts(t, s, table) {
			all[table+"/"+key] = value
		}
	}
	return all
}

// makeLarge returns the bytes of a store whose file has all that a file can have: inner pages, long values, tables
// within another page, free pages; and its contents before and behind the newest transaction.
func makeLarge(t *testing.T) (file []byte, all [2]contents) {
	dir := t.TempDir()
	s := open(t, dir)
	statustest.OK(t, statustest.Of(s.Start()))
	var entries []Entry
	for i := range 600 {
		entries = append(entries, Entry{"links", fmt.Sprintf("%020d", i), bytes.Repeat([]byte{byte(i)}, 20+i%100)})
	}
	for i := range 4 {
		entries = append(entries, Entry{"programs", fmt.Sprint(i), bytes.Repeat([]byte{byte(i)}, 1000<<i)})
	}
	entries = append(entries, Entry{"few", "1", []byte("fact")}, Entry{"none", "1", nil})
	statustest.OK(t, s.Write(entries))
	for i := range 100 {
		entries[i].Value = nil
	}
	statustest.OK(t, s.Write(entries[:100]))
	all[0] = contentsOf(t, s)
	statustest.OK(t, s.Write([]Entry{{"few", "2", []byte("fact")}, {"links", "10", nil}}))
	all[1] = contentsOf(t, s)
	statustest.OK(t, s.Close())
	file = statustest.Value(os.ReadFile(filepath.Join(dir, File))).OK(t)
	return file[:order.Uint64(newestMeta(bytes.NewReader(file))[40:])*uint64(os.Getpagesize())], all
}

// A start with a damaged file is refused, and leaves the file as it is. Otherwise what is damaged is not used, or is
// the newest meta page, as after a crash; then the store has all that was kept, and keeps more.
func TestDamagedFilesAreRefused(t *testing.T) {
	file, all := makeLarge(t)
	page := os.Getpagesize()
	r := rand.New(rand.NewPCG(1, 2))
	flip := func(within int) func(p []byte) {
		return func(p []byte) { p[r.IntN(min(within, len(p)))] ^= 1 << r.IntN(8) }
	}
	damages := map[string]func(p []byte){
		"a bit of its header":      flip(headerSize),
		"a bit of its first parts": flip(200),
		"a bit":                    flip(page),
		"zeroed":                   func(p []byte) { clear(p) },
		"a sector zeroed":          func(p []byte) { clear(p[512*r.IntN(len(p)/512):][:512]) },
		"all ones":                 func(p []byte) { copy(p, bytes.Repeat([]byte{255}, len(p))) },
		"many elements":            func(p []byte) { p[10], p[11] = 255, 255 },
		"one element less":         func(p []byte) { p[10]-- },
		"many further pages":       func(p []byte) { p[14] = 255 },
		"another page": func(p []byte) {
			copy(p, file[page*r.IntN(len(file)/page):][:page])
		},
	}
	if page < 4096 || len(file)/page < 20 {
		t.Fatalf("%d bytes are too few pages", len(file))
	}
	dir := t.TempDir()
	path := filepath.Join(dir, File)
	trial := func(name string, damaged []byte) {
		t.Helper()
		if check(bytes.NewReader(damaged), int64(len(damaged))) != nil && r.IntN(8) > 0 {
			return // refused: to show what Open makes of it takes longer
		}
		statustest.OK(t, os.WriteFile(path, damaged, 0o600))
		s, err := Open(dir)
		if err != nil {
			statustest.Fails(t, name, err, status.DataLoss, path, "restore it from a copy, or move it away")
			if after := statustest.Value(os.ReadFile(path)).OK(t); !bytes.Equal(after, damaged) {
				t.Errorf("%s: the file was changed", name)
			}
			return
		}
		s.db.NoSync = true
		if got := contentsOf(t, s); !maps.Equal(got, all[0]) && !maps.Equal(got, all[1]) {
			t.Errorf("%s: it opens, and has lost facts", name)
		}
		who, err := s.Start()
		if statustest.Checkf(t, err, "%s", name); who.Starts != 2 {
			t.Errorf("%s: it opens as another controller", name)
		}
		statustest.Checkf(t, s.Write([]Entry{{"links", "more", []byte("fact")}, {"programs", "1", nil}}), "%s", name)
		statustest.Checkf(t, s.Close(), "%s", name)
		s, err = Open(dir)
		if statustest.Checkf(t, err, "%s, opened again", name); err == nil {
			statustest.Check(t, s.Close())
		}
	}
	for number := range len(file) / page {
		for name, damage := range damages {
			damaged := bytes.Clone(file)
			damage(damaged[number*page:][:page])
			trial(fmt.Sprintf("page %d: %s", number, name), damaged)
		}
		if number > 0 {
			trial(fmt.Sprintf("cut before page %d", number), file[:number*page])
		}
	}
	// Inner pages that refer to themselves, and to a table's root.
	inner := 0
	for number := 2; number < len(file)/page; number++ {
		p := file[number*page:]
		if order.Uint64(p) != uint64(number) || order.Uint16(p[8:]) != branchPage {
			continue
		}
		inner++
		for child := range min(int(order.Uint16(p[10:])), 3) {
			damaged := bytes.Clone(file)
			order.PutUint64(damaged[number*page+headerSize+child*elementSize+8:], uint64(number))
			trial(fmt.Sprintf("page %d, child %d: its own child", number, child), damaged)
		}
	}
	if inner == 0 {
		t.Error("the file has no inner page")
	}
}

// Whatever was written, no file is taken for a damaged one.
func TestWholeFilesAreNotRefused(t *testing.T) {
	dir := t.TempDir()
	want := contents{}
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		s := open(t, dir)
		s.db.NoSync = true
		if got := contentsOf(t, s); !maps.Equal(got, want) {
			t.Fatalf("%d facts were kept, and it has %d", len(want), len(got))
		}
		statustest.OK(t, statustest.Of(s.Start()))
		for range r.IntN(3) {
			var entries []Entry
			for range 1 << r.IntN(9) {
				e := Entry{Table: tables[1+r.IntN(len(tables)-1)], Key: fmt.Sprint(r.IntN(1000))}
				if r.IntN(2) > 0 {
					e.Value = make([]byte, []int{0, 1, 100, 1000, 20_000}[r.IntN(5)])
				}
				if entries = append(entries, e); e.Value == nil {
					delete(want, e.Table+"/"+e.Key)
				} else {
					want[e.Table+"/"+e.Key] = string(e.Value)
				}
			}
			statustest.OK(t, s.Write(entries))
		}
		statustest.OK(t, s.Close())
	}
}

// A file that is cut while it is open fails what needs the rest, and does not end the process.
func TestFileThatIsCutWhileItIsOpen(t *testing.T) {
	file, _ := makeLarge(t)
	dir := t.TempDir()
	path := filepath.Join(dir, File)
	statustest.OK(t, os.WriteFile(path, file, 0o600))
	s := open(t, dir)
	statustest.OK(t, os.Truncate(path, 2*int64(os.Getpagesize())))
	for range 2 {
		statustest.Fails(t, "a write", s.Write([]Entry{{"links", "1", []byte("fact")}}), status.DataLoss, path, "damaged")
		statustest.Fails(t, "a read", s.Read("links", nil), status.DataLoss, path, "damaged")
	}
	statustest.Check(t, s.Remove())
}
