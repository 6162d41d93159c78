package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// MemoryNumber stands in a MemoryName where the number of a memory is.
const MemoryNumber = "{id}"

// MemoryText returns how a memory of a kind reads that has this number in a client: as
// the platform's plugin writes its own, or in the same form where it does not say.
func (p *Platform) MemoryText(kind string, number int) (text, debug string) {
	digits := strconv.Itoa(number)
	for _, m := range p.GetMemories() {
		if m.GetKind() == kind {
			return strings.Replace(m.Text, MemoryNumber, digits, 1), strings.Replace(m.Debug, MemoryNumber, digits, 1)
		}
	}
	var words strings.Builder // such as SimPinnedHost
	for word := range strings.SplitSeq(p.GetName()+"_"+kind, "_") {
		if word != "" {
			words.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return fmt.Sprintf("%sMemory(id=%d, process_index=0, client=%s)", words.String(), number, p.GetName()),
		fmt.Sprintf("%s_%s_%d", strings.ToUpper(p.GetName()), strings.ToUpper(kind), number)
}

// OnHost reports whether devices of a platform have no memory but the machine's: CPUs, and all simulated ones.
func OnHost(platform string) bool {
	return platform == "cpu" || platform == "sim" || strings.HasPrefix(platform, "sim_")
}
