package worker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/sim"
	"github.com/openpathways/pathways/transport/content"
)

// A file of the cache has what was written, whatever the size, and nothing where it is damaged, or where another
// user may have written it.
func TestDamagedCacheFilesAreNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.program")
	said := &wire.Compiled{Info: &wire.ProgramInfo{Name: "f"}, Loadable: &wire.Loadable{Kept: true, Bytes: 5}}
	header := statustest.Value(proto.Marshal(said)).OK(t)
	serialized, code := bytes.Repeat([]byte("number "), 3<<20), []byte{1, 2, 3}
	used := content.Used()
	for _, parts := range [][][]byte{{serialized, code}, {code, nil}, {nil, nil}, {code, nil, code, serialized}} {
		var memory []*content.Memory
		for _, part := range parts {
			memory = append(memory, content.Bytes(part))
		}
		statustest.OK(t, writeCached(path, header, memory))
		m, got, err := readCached(path)
		if err != nil || !proto.Equal(m, said) || len(got) != len(parts) {
			t.Fatalf("%v with %d parts, %v, want %v and %d parts", m, len(got), err, said, len(parts))
		}
		for i, part := range got {
			if !bytes.Equal(part.Data, parts[i]) {
				t.Errorf("part %d has %d other bytes, want the %d that were written", i, len(part.Data), len(parts[i]))
			}
			part.Release()
		}
	}
	whole, err := os.ReadFile(path)
	statustest.OK(t, err)
	for name, damage := range map[string]func(b []byte) []byte{
		"the sum":        func(b []byte) []byte { b[0]++; return b },
		"a length":       func(b []byte) []byte { b[sha256.Size+7] = 0xff; return b },
		"the message":    func(b []byte) []byte { b[sha256.Size+10]++; return b },
		"the end":        func(b []byte) []byte { return b[:len(b)-1] },
		"more at it":     func(b []byte) []byte { return append(b, 0) },
		"all but a byte": func(b []byte) []byte { return b[:1] },
	} {
		statustest.OK(t, os.WriteFile(path, damage(bytes.Clone(whole)), 0o600))
		if m, parts, err := readCached(path); status.CodeOf(err) != status.DataLoss || m != nil || parts != nil {
			t.Errorf("%s is damaged, and reading returns %v with %d parts, %v", name, m, len(parts), err)
		}
	}
	statustest.OK(t, os.WriteFile(path, whole, 0o600))
	statustest.OK(t, os.Chmod(path, 0o622))
	statustest.Fails(t, "a file that others may write to", statustest.Of2(readCached(path)), status.PermissionDenied)
	statustest.Equal(t, content.Used()-used, 0, "bytes of programs are left")
	err = writeCached(filepath.Join(filepath.Dir(path), "none", "x"), header, nil)
	statustest.Fails(t, "a folder that is not there", err, status.NotFound)
	statustest.Equal(t, len(statustest.Value(os.ReadDir(filepath.Dir(path))).OK(t)), 1, "files of the folder")
}

// FuzzReadCached reads files of a cache that are damaged, or that another program has written with a right sum: each is
// refused, or has what a file has that is written of it again.
func FuzzReadCached(f *testing.F) {
	path := filepath.Join(f.TempDir(), "key.program")
	info := &wire.ProgramInfo{Name: "f"}
	constants := statustest.Value(constantsOf([]device.Constant{constantOf(7, 5), constantOf(1, 3)})).OK(f)
	for _, c := range []struct {
		loadable *wire.Loadable
		parts    []*content.Memory
	}{
		{&wire.Loadable{Serialized: []byte("serialized")}, nil},
		{&wire.Loadable{Kept: true}, []*content.Memory{content.Bytes([]byte("serialized")), content.Bytes([]byte("code"))}},
		{&wire.Loadable{Kept: true}, append([]*content.Memory{content.Bytes([]byte("serialized")), content.Bytes(nil)},
			constants...)},
	} {
		header := statustest.Value(proto.Marshal(&wire.Compiled{Info: info, Loadable: c.loadable})).OK(f)
		statustest.OK(f, writeCached(path, header, c.parts))
		whole := statustest.Value(os.ReadFile(path)).OK(f)
		f.Add(whole, false)
		f.Add(whole[sha256.Size:], true)
		f.Add(whole[sha256.Size:len(whole)-1], true)
	}
	release(constants...)
	d := statustest.Value(sim.Open(sim.Options{Devices: 1})).OK(f)
	w := &Worker{driver: d, queues: make([]*queue, 1)}
	program := sim.Program{Name: "p", Params: []sim.Param{{DType: "u32", Dims: []int64{5}}}}
	f.Fuzz(func(t *testing.T, file []byte, summed bool) {
		path, used := filepath.Join(t.TempDir(), "key.program"), content.Used()
		if summed {
			sum := sha256.Sum256(file)
			file = append(sum[:], file...)
		}
		statustest.OK(t, os.WriteFile(path, file, 0o600))
		m, parts, err := readCached(path)
		if err != nil {
			statustest.Fails(t, "the error", err, status.DataLoss, "the file is damaged")
			statustest.Equal(t, content.Used(), used, "bytes of a file that was refused")
			return
		}
		size := 0
		for _, part := range parts {
			size += len(part.Data)
		}
		if size > len(file) || m.Loadable.Kept != (len(parts) >= 2) {
			t.Errorf("of %d bytes come %d parts with %d; kept: %t", len(file), len(parts), size, m.Loadable.Kept)
		}
		statustest.OK(t, writeCached(path, statustest.Value(proto.Marshal(m)).OK(t), parts))
		again, copies, err := readCached(path)
		if err != nil || !proto.Equal(again, m) || len(copies) != len(parts) {
			t.Fatalf("written again, it is %v with %d parts, %v; want %v with %d", again, len(copies), err, m, len(parts))
		}
		for i, part := range parts {
			statustest.EqualSlices(t, copies[i].Data, part.Data, "part %d", i)
		}
		release(copies...)
		if len(parts) > 2 {
			x := statustest.Value(d.Compile(t.Context(), program.Source(), nil)).OK(t)
			if with, err := w.withConstants(x, parts[2:]); err == nil {
				with.Close()
			} else if code := status.CodeOf(err); code != status.DataLoss && code != status.InvalidArgument {
				t.Errorf("constants that are damaged: %v", err)
			}
		}
		release(parts...)
		statustest.Soon(t, content.Used, used, "bytes that are left")
		statustest.Equal(t, statustest.Value(d.MemoryStats(0)).OK(t).InUse, 0, "bytes on the device")
	})
}

// A key names a file in the folder and nowhere else.
func TestCacheKeysNameFilesOfTheFolder(t *testing.T) {
	sum := sha256.Sum256([]byte("program"))
	for key, want := range map[string]bool{hex.EncodeToString(sum[:]): true, "": false, "../../etc/passwd": false,
		string(bytes.Repeat([]byte("../x"), 16)): false} {
		w := &Worker{config: Config{Cache: t.TempDir()}}
		statustest.Equal(t, w.caches(&wire.Compile{Key: key, Inline: 1}), want, "key %q is kept", key)
	}
}
