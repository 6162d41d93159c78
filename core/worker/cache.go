package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/transport/content"
)

// A worker with Config.Cache keeps what it compiles in that folder, of any size, under the controller's name of the
// program, and looks there before it compiles. So the bytes pass no other process, and no lock but its own of a file
// system. Workers may share a folder; each file is complete or not there.
//
// A file holds the SHA-256 of what follows; a wire.Compiled, as the controller is answered; and the parts of the
// artifact, if its bytes did not go with that answer. Each has its length in front of it. Programs whose serialized
// form names devices of an epoch (JOINED) are not kept.

// cachedLength is the size of the length in front of each part of a file.
const cachedLength = 8

// hashedAtOnce is how many bytes are written and hashed by turns: they are still in the processor's cache.
const hashedAtOnce = 1 << 20

// cachePath returns the file of a program. Members of an epoch have files of their own, since their devices have other
// numbers.
func (w *Worker) cachePath(m *wire.Compile) string {
	name := m.Key
	if w.config.DeviceID != nil {
		name += joinedFile
	}
	return filepath.Join(w.config.Cache, name+programFile)
}

// joinedFile is in the names of members' files.
const joinedFile = "-joined"

// caches reports whether a program is looked up and kept.
func (w *Worker) caches(m *wire.Compile) bool {
	return w.config.Cache != "" && m.Inline > 0 && isKey(m.Key)
}

// fromCache answers with what the cache has of a program, and reports whether it has any. A file that is damaged goes.
func (w *Worker) fromCache(m *wire.Compile, answer *wire.Compiled) bool {
	if !w.caches(m) {
		return false
	}
	path := w.cachePath(m)
	kept, parts, err := readCached(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.log.Warn("a program in the cache is of no use, and is compiled", "file", path, "error", err)
			_ = os.Remove(path)
		}
		return false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // see tidyCache; a folder that cannot be written to bounds nothing
	if kept.Loadable.Kept {
		spill(parts[:2]...)
		w.artifacts.add(m.Op, &artifact{serialized: parts[0], code: parts[1], constants: parts[2:]})
	}
	if t := m.Text; t.GetTransfer() != 0 { // its client need not send it
		content.Fail(w.config.Exchange, t.Transfer,
			status.New(status.Cancelled, "worker %s has the program in its cache", w.config.Name))
	}
	answer.Info, answer.Loadable, answer.Cached = kept.Info, kept.Loadable, true
	return true
}

// readCached reads a file. If the artifact's bytes are not part of the message, its parts are for the caller to
// release; otherwise there are none.
//
// Errors: those of package system; DATA_LOSS, PERMISSION_DENIED.
func readCached(path string) (m *wire.Compiled, parts []*content.Memory, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, system.Error(err, "cannot read a compiled program")
	}
	defer f.Close()
	defer func() {
		if err != nil {
			release(parts...)
			m, parts, err = nil, nil, system.Error(err, "cannot read a compiled program")
		}
	}()
	size, err := sizeOfOwn(f)
	if err != nil {
		return nil, nil, err
	}
	var want [sha256.Size]byte
	if _, err := io.ReadFull(f, want[:]); err != nil {
		return nil, nil, damaged(err)
	}
	sum := sha256.New()
	r := io.TeeReader(f, sum)
	left := size - sha256.Size
	part := func(most int64) (*content.Memory, error) {
		var length [cachedLength]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return nil, damaged(err)
		}
		n := binary.LittleEndian.Uint64(length[:])
		if left -= cachedLength; n > uint64(min(most, max(left, 0))) {
			return nil, damaged(io.ErrUnexpectedEOF)
		}
		left -= int64(n)
		return content.Read(r, int(n))
	}
	header, err := part(wire.MaxFrame)
	if err != nil {
		return nil, nil, err
	}
	defer header.Release()
	m = new(wire.Compiled)
	if proto.Unmarshal(header.Data, m) != nil || m.Info == nil || m.Loadable == nil {
		return nil, nil, damaged(io.ErrUnexpectedEOF)
	}
	for m.Loadable.Kept && (len(parts) < 2 || left > 0 && len(parts) < content.MaxParts) {
		p, err := part(content.MaxSize)
		if err != nil {
			return nil, parts, err
		}
		parts = append(parts, p)
	}
	if !bytes.Equal(sum.Sum(nil), want[:]) || left != 0 {
		return nil, parts, damaged(io.ErrUnexpectedEOF)
	}
	return m, parts, nil
}

// sizeOfOwn returns the size of a file, which is loaded as code: it must be a regular one that only this user may
// write.
//
// Errors: PERMISSION_DENIED; those of Stat.
func sizeOfOwn(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if !info.Mode().IsRegular() || owner != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return 0, status.New(status.PermissionDenied, "the file has mode %v and belongs to user %d; expected a file "+
			"of user %d alone", info.Mode(), owner, os.Geteuid())
	}
	return info.Size(), nil
}

func damaged(err error) error { return status.New(status.DataLoss, "the file is damaged: %w", err) }

// toCache keeps what a worker answers with, and the parts of the artifact, which it releases. It runs when the answer
// has gone.
func (w *Worker) toCache(m *wire.Compile, answer *wire.Compiled, parts []*content.Memory) {
	defer release(parts...)
	if len(answer.Loadable.Serialized) == 0 && (len(parts) == 0 || len(parts[0].Data) == 0) {
		return // the driver has no serialized form
	}
	header, err := proto.Marshal(&wire.Compiled{Info: answer.Info, Loadable: answer.Loadable})
	size := int64(len(header))
	for _, part := range parts {
		size += int64(len(part.Data))
	}
	if most := w.config.CacheBytes; most > 0 && size > most { // it would take the place of all others, and then go itself
		w.log.Warn("a compiled program is larger than the whole cache, and was not kept", "bytes", size, "most", most)
		return
	}
	if err == nil {
		err = writeCached(w.cachePath(m), header, parts)
		w.boundCache()
	}
	if err != nil {
		w.log.Warn("a compiled program was not kept", "code", status.CodeOf(err), "error", err)
	}
}

// writeCached writes a file. Readers see all of it or nothing.
//
// Errors: those of package system, with the file.
func writeCached(path string, header []byte, parts []*content.Memory) error {
	f, err := os.CreateTemp(filepath.Dir(path), newFile+"*") // mode 0600
	if err != nil {
		return system.Error(err, "cannot keep a compiled program")
	}
	all := [][]byte{header}
	for _, part := range parts {
		all = append(all, part.Data)
	}
	sum := sha256.New()
	to := io.MultiWriter(f, sum)
	_, err = f.Seek(sha256.Size, io.SeekStart)
	for _, part := range all {
		for _, b := range [][]byte{binary.LittleEndian.AppendUint64(nil, uint64(len(part))), part} {
			for err == nil && len(b) > 0 {
				n := min(len(b), hashedAtOnce)
				_, err = to.Write(b[:n])
				b = b[n:]
			}
		}
	}
	if err == nil {
		_, err = f.WriteAt(sum.Sum(nil), 0)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		if e := os.Remove(f.Name()); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return system.Error(err, "cannot keep a compiled program")
}

// compileOrFind fills the answer to a Compile, from the cache or by compiling. The answer may hold the text, which the
// caller releases.
func (w *Worker) compileOrFind(ctx context.Context, m *wire.Compile, answer *wire.Compiled) (*content.Memory, error) {
	if w.fromCache(m, answer) {
		return content.Bytes(nil), nil
	}
	text, err := w.textOf(ctx, m)
	if answer.NoText = err != nil; err != nil {
		return content.Bytes(nil), err
	}
	answer.Info, answer.Loadable, err = w.compiled(ctx, m, text)
	return text, err
}
