package command

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// lastLines is the number of lines of a dead process's log that stand for its last words if none of them says why it
// ended.
const lastLines = 3

// fatal matches lines that tell why a process ends: of XLA and Go, whose stack traces follow, and of C++. Its groups
// leave out what XLA says first: the kind of the line, a time and a thread.
var fatal = regexp.MustCompile(
	`(?m)^(?:F\d{4} [\d:.]+ +\d+ (.+)|((?:panic|fatal error|SIG[A-Z]+): .+|terminate called .+))$`)

// cause returns the first line of a process's log that says why the process ended, without its full stop, since errors
// go on behind it; "" if there is none. The process wrote what is behind the log's first bytes.
func cause(path string, first int64) string {
	m := fatal.FindStringSubmatch(readEnd(path, first))
	if m == nil {
		return ""
	}
	return strings.TrimSuffix(cmp.Or(m[1], m[2]), ".")
}

// lastWords returns what a process said before it ended, for people.
func lastWords(path string, first int64) string {
	return cmp.Or(cause(path, first), tail(path, first, lastLines))
}

// causeOf returns why a process of the cluster ended, as far as its log says so.
func (c place) causeOf(pid int) string {
	all, err := c.listed()
	if err != nil {
		return ""
	}
	i := slices.IndexFunc(all, func(q process) bool { return q.PID == pid })
	if i < 0 {
		return ""
	}
	return cause(c.path(all[i].Name+".log"), all[i].LogBegins)
}
