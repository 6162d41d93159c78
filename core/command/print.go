package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/wire"
)

// table returns a writer that aligns columns, for a controller's answers. The caller flushes it.
func (p *program) table() *tabwriter.Writer {
	return tabwriter.NewWriter(cleaned{p.out}, 0, 0, 2, ' ', 0)
}

// cleaned writes lines without characters that control a terminal: names of programs and files are chosen by users.
type cleaned struct{ io.Writer }

func (c cleaned) Write(text []byte) (int, error) {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = wire.Clean(line)
	}
	if _, err := io.WriteString(c.Writer, strings.Join(lines, "\n")); err != nil {
		return 0, err
	}
	return len(text), nil
}

// section is a part of a table, whose heading comes with its first row.
type section struct {
	w       io.Writer
	heading string
}

func (s *section) printf(format string, args ...any) {
	fmt.Fprint(s.w, s.heading)
	fmt.Fprintf(s.w, format, args...)
	s.heading = ""
}

// printJSON prints a value as indented JSON.
func (p *program) printJSON(value any) error {
	b, err := json.MarshalIndent(value, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(p.out, "%s\n", b)
	}
	return err
}

// jsonOf is wire.AppendJSON of each message of a list; an empty list is not null.
func jsonOf[M proto.Message](list []M) []json.RawMessage {
	all := make([]json.RawMessage, len(list))
	for i, m := range list {
		all[i] = wire.AppendJSON(nil, m)
	}
	return all
}
