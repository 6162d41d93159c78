package profile

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// tracing is the pathways.trace under way, if there is one.
var tracing struct {
	mu   sync.Mutex // guards the rest; only StartTrace, which creates the file under it, and StopTrace take it
	file *os.File   // not nil from before it begins until it is written
	r    *recording // not nil while it records
}

// StartTrace begins to record into a file, for Perfetto.
//
// Errors: FAILED_PRECONDITION if a trace is already being recorded, and those of system.Error if the file cannot be
// created.
func StartTrace(path string) error {
	tracing.mu.Lock()
	defer tracing.mu.Unlock()
	if tracing.file != nil {
		return status.New(status.FailedPrecondition, "a trace is already being recorded; end it before you begin another")
	}
	file, err := os.Create(path)
	if err != nil {
		return system.Error(err, "cannot write the trace")
	}
	tracing.file, tracing.r = file, start()
	return nil
}

// StopTrace ends the trace and writes its file.
//
// Errors: FAILED_PRECONDITION if no trace is being recorded, and those of system.Error if the file cannot be written:
// RESOURCE_EXHAUSTED for a full disk.
func StopTrace() error {
	tracing.mu.Lock()
	file, r := tracing.file, tracing.r
	tracing.r = nil
	tracing.mu.Unlock()
	if r == nil {
		return status.New(status.FailedPrecondition, "no trace is being recorded")
	}
	all := observe.Recorded{Began: r.began}
	profiles := r.stop()
	missing(profiles)
	for _, p := range profiles {
		all.Spans, all.Dropped = append(all.Spans, p.Spans...), all.Dropped+p.Dropped
		all.Devices, all.Events = append(all.Devices, p.Devices...), append(all.Events, p.Events...)
	}
	copied := newTraceCopy(profiles)
	err := observe.WritePerfetto(copied.beside(file), os.Getpid(), all)
	if e := file.Close(); err == nil {
		err = e
	}
	copied.send(profiles, filepath.Base(file.Name()), time.Duration(time.Now().UnixNano()-r.began))
	tracing.mu.Lock()
	tracing.file = nil
	tracing.mu.Unlock()
	return system.Error(err, "the trace was not written completely")
}

// traceCopy is a trace for the clusters that it is about, compressed.
type traceCopy struct {
	most   int // bytes; 0: none of them keeps it
	buffer bytes.Buffer
	zip    *gzip.Writer
}

func newTraceCopy(profiles []Profile) *traceCopy {
	c := new(traceCopy)
	for _, p := range profiles {
		if p.Keep != nil {
			c.most = max(c.most, p.MaxTrace)
		}
	}
	c.zip = gzip.NewWriter(&c.buffer)
	return c
}

// beside returns a writer to a file, and to the copy where one is wanted.
func (c *traceCopy) beside(file io.Writer) io.Writer {
	if c.most == 0 {
		return file
	}
	return io.MultiWriter(file, c)
}

// Write implements io.Writer. Of a trace that is too large nothing is kept.
func (c *traceCopy) Write(b []byte) (int, error) {
	if c.buffer.Len() <= c.most {
		_, _ = c.zip.Write(b) // a buffer takes everything
	}
	return len(b), nil
}

// send sends the copy.
func (c *traceCopy) send(profiles []Profile, name string, took time.Duration) {
	if c.most == 0 {
		return
	}
	_ = c.zip.Close() // as above
	for _, p := range profiles {
		if p.Keep != nil && c.buffer.Len() <= p.MaxTrace {
			p.Keep(name, took, c.buffer.Bytes())
		}
	}
}
