package observe

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"time"
)

// Copy is a second copy of what WritePerfetto writes, compressed by gzip, of a bounded size. Use NewCopy. It is for one
// goroutine.
type Copy struct {
	most   int
	buffer bytes.Buffer
	zip    *gzip.Writer
	wrote  int64 // bytes before they are compressed
	fits   int64 // of them, those that are in the buffer
}

// NewCopy returns an empty copy, of at most so many compressed bytes.
func NewCopy(most int) *Copy {
	c := &Copy{most: most}
	c.zip = gzip.NewWriter(&c.buffer)
	return c
}

// Write implements io.Writer. It drops what is beyond the limit.
func (c *Copy) Write(b []byte) (int, error) {
	if c.wrote += int64(len(b)); c.buffer.Len() <= c.most {
		_, _ = c.zip.Write(b) // a buffer takes everything
		c.fits = c.wrote
	}
	return len(b), nil
}

// isWhole ends the copy, and reports whether all that was written is in it.
func (c *Copy) isWhole() bool {
	_ = c.zip.Close() // a buffer takes everything
	return c.buffer.Len() <= c.most
}

// A copy that is too long is made of so much of the recording as is likely to fit, and where it does not, of half of
// that, a few times.
const (
	likely = 0.9
	halves = 0.5
	tries  = 8
)

// End returns the copy of a recording that was written. If that was too long it is of the recording's first part alone,
// and says so, and that the whole is in a file. It is nil if nothing fits.
func (c *Copy) End(r *Recorded, pid int, took time.Duration, file string) []byte {
	share := likely * float64(c.fits) / float64(max(c.wrote, 1))
	for try := 0; !c.isWhole(); try++ {
		if try == tries {
			return nil // the names alone are too long
		}
		short := r.first(share)
		short.Why = fmt.Sprintf("this copy has the first %v of %v, since a cluster keeps %d KiB of a trace, compressed; "+
			"all of it is in %s", time.Duration(short.Ended-r.Began).Round(time.Millisecond), took.Round(time.Millisecond),
			c.most>>10, file)
		c.buffer.Reset()
		c.zip.Reset(&c.buffer)
		if err := WritePerfetto(c, pid, short); err != nil {
			return nil // which the file's own writer tells
		}
		share *= halves
	}
	return c.buffer.Bytes()
}
