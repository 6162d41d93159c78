package wire

import (
	"fmt"
	"strings"
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
