package pjrt

import (
	"os"
	"strings"
	"sync"

	"github.com/openpathways/pathways/core/xla/aot"
)

// flags are this machine's processor flags as Linux reports them, by LLVM's names: Linux writes avx512_bf16, LLVM
// avx512bf16. It is empty if Linux does not report any.
var flags = sync.OnceValue(func() map[string]bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if name, list, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			for _, flag := range strings.Fields(list) {
				known[strings.ReplaceAll(flag, "_", "")] = true
			}
			break // all processors of a machine have the same
		}
	}
	return known
})

// ForLoad returns a serialized executable in a form that a plugin loads on this machine without unfounded warnings.
func ForLoad(serialized []byte) []byte {
	return aot.ForLoad(serialized, func(feature string) bool { return flags()[feature] })
}
