package content_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/content"
)

// onDisk returns a folder whose files are not memory.
func onDisk(t *testing.T) string {
	for _, folder := range []string{t.TempDir(), content.SpillFolder(), "."} {
		m, err := content.Spilled(folder, []byte("x"))
		if err == nil {
			m.Release()
			return folder
		}
	}
	t.Skip("all folders here are in memory, or cannot have files without names")
	return ""
}

// Bytes in a file are those that were there before, for those too that have read them all the time, and take no memory
// of this process any more.
func TestSpilledBytesAreTheSame(t *testing.T) {
	folder := onDisk(t)
	want := bytes.Repeat([]byte("program "), 3<<20) // several chunks
	before := content.Used()
	m := statustest.Value(content.Read(bytes.NewReader(want), len(want))).OK(t)
	data, stop, stopped := m.Data, make(chan struct{}), make(chan bool)
	m.Hold()
	go func() {
		same := true
		for running := true; running; {
			select {
			case <-stop:
				running = false
			default:
			}
			same = same && bytes.Equal(data, want)
		}
		stopped <- same
	}()
	statustest.Check(t, m.Spill(folder))
	close(stop)
	if !<-stopped {
		t.Error("other bytes were read")
	}
	statustest.Equal(t, content.Used()-before, 0, "bytes are counted as memory")
	statustest.Check(t, m.Spill(folder)) // nothing is left to do
	m.Release()
	if !bytes.Equal(m.Data, want) {
		t.Error("they are gone before their last user has")
	}
	m.Release()
	made, err := content.Spilled(folder, want)
	if err != nil || !bytes.Equal(made.Data, want) || content.Used() != before {
		t.Errorf("a copy of %d bytes, %v, with %d that are counted as memory", len(made.Data), err, content.Used()-before)
	}
	made.Release()
	if files, err := os.ReadDir(folder); err == nil && folder != "." && len(files) > 0 && folder != content.SpillFolder() {
		t.Errorf("the folder has %v", files)
	}
}

// Bytes that cannot be moved stay where they are.
func TestSpillIntoNoFolder(t *testing.T) {
	m := statustest.Value(content.Read(bytes.NewReader([]byte("program")), 7)).OK(t)
	defer m.Release()
	statustest.Fails(t, "a folder that is not there", m.Spill("/nothing/there"), status.NotFound)
	statustest.Equal(t, string(m.Data), "program", "what it holds")
	if _, err := os.Stat("/dev/shm"); err == nil {
		statustest.Fails(t, "memory", m.Spill("/dev/shm"), status.Unimplemented)
		statustest.Equal(t, string(m.Data), "program", "what it holds")
	}
}
