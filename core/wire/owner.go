package wire

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Owner says for people whose a session is, such as "session 3, notebook of ada on node1". What is empty is not known;
// a client's name often begins with its machine's.
func Owner(session uint32, client, user, machine string) string {
	text := fmt.Sprintf("session %d", session)
	if client != "" {
		text += ", " + client
	}
	if user != "" {
		text += " of " + user
	}
	if machine != "" && !strings.HasPrefix(client, machine+":") {
		text += " on " + machine
	}
	return text
}

// Clean replaces what would do more to a terminal than be shown.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '·'
		}
		return r
	}, text)
}

// MaxText is how many bytes of a text that a session has chosen go into messages that people read: those of the longest
// path of a file, and then some.
const MaxText = 5 << 10

// Line returns the line of a user's code that an operation came with, which may be any bytes, for messages that people
// read.
func Line(trace []byte) string {
	if len(trace) > MaxText {
		trace = append(slices.Clip(trace[:MaxText]), "…"...)
	}
	return strings.ToValidUTF8(string(trace), "\ufffd")
}

// CleanName cuts the name of a program that is longer than people read.
func (m *ProgramInfo) CleanName() { m.Name = Line([]byte(m.Name)) }

// maxName is how many characters of a name are kept: those of the longest name of a host.
const maxName = 253

// CleanNames makes what a process calls itself fit to be shown: each name is cleaned, and cut where it is longer than
// any that a machine has. Equal names stay equal.
func (m *Hello) CleanNames() {
	names := []*string{&m.Name, &m.User, &m.Machine, &m.Host}
	if m.Worker != nil {
		names = append(names, &m.Worker.Island, &m.Worker.Host)
	}
	for _, name := range names {
		if all := []rune(*name); len(all) > maxName {
			*name = string(all[:maxName-1]) + "…"
		}
		*name = Clean(*name)
	}
}
