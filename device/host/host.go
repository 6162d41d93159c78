// Package host reports how much of its machine's memory this process may use, lends Go
// processors beyond its share of the machine, and has long work leave them to others.
//
// Its functions may be called from any goroutine. It imports nothing of the
// module; users of drivers and frontends may import it.
package host

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that this process may use: the machine's memory, or
// the lowest limit of the control groups that the process is in. It returns 0 if the
// system does not say.
func Memory() int64 { return memory(os.DirFS("/")) }

// memory implements Memory for a root directory that contains proc and sys.
func memory(root fs.FS) int64 {
	least := total(root)
	for _, limit := range limits(root) {
		if limit > 0 && (least == 0 || limit < least) {
			least = limit
		}
	}
	return least
}

// total returns the machine's memory, or 0 if it is not known.
func total(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err == nil && n > 0 && n <= math.MaxInt64>>10 {
				return n << 10
			}
		}
	}
	return 0
}

// limits returns the limits of the process's control group and of those above it, for both
// versions of control groups. A group without a limit has "max", or a number larger than
// any machine's memory.
func limits(root fs.FS) []int64 {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	var found []int64
	for line := range strings.Lines(string(text)) {
		// number:controllers:path, with no controllers for version 2
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container the path may be the host's; then only the root exists.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			text, err := fs.ReadFile(root, path.Join(mount, group, file))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
				found = append(found, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return found
}
