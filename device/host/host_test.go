package host

import (
	"testing"
	"testing/fstest"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMemoryIsTheLeastOfTheMachinesAndItsControlGroups(t *testing.T) {
	const machine = "MemFree: 7 kB\nMemTotal:       16 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known": {nil, 0},
		"only the machine": {map[string]string{"proc/meminfo": machine}, 16 << 10},
		"no number":        {map[string]string{"proc/meminfo": "MemTotal: much kB\n"}, 0},
		"a group without a limit": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 16 << 10},
		"a group with one": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000},
		"one above it has less": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/memory.max": "4000\n"}, 4000},
		"a container that sees its own group as the root": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		"version 1": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "4:cpu,cpuacct:/q\n3:memory:/q\n",
			"sys/fs/cgroup/memory/q/memory.limit_in_bytes":    "2000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":      "9223372036854771712\n",
			"sys/fs/cgroup/cpu/q/memory.limit_in_bytes":       "1\n",
			"sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes": "1\n"}, 2000},
		"only a group": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		statustest.Equal(t, memory(root), c.want, "%s: bytes", name)
	}
}

func TestThisMachineHasMemory(t *testing.T) {
	if n := Memory(); n < 64<<20 {
		t.Errorf("this machine has %d bytes of memory, want what a test needs at least", n)
	}
}
