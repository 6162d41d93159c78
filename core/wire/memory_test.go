package wire

import "testing"

func TestMemoriesReadAsTheirPluginWritesThem(t *testing.T) {
	p := &Platform{Name: "sim", Memories: []*MemoryName{
		{Kind: "device", Text: "SimMemory(id={id}, process_index=0)", Debug: "SIM_{id}"}}}
	for _, c := range []struct {
		p                 *Platform
		kind, text, debug string
	}{
		{p, "device", "SimMemory(id=12, process_index=0)", "SIM_12"},
		{p, "pinned_host", "SimPinnedHostMemory(id=12, process_index=0, client=sim)", "SIM_PINNED_HOST_12"},
		{nil, "device", "DeviceMemory(id=12, process_index=0, client=)", "_DEVICE_12"},
	} {
		if text, debug := c.p.MemoryText(c.kind, 12); text != c.text || debug != c.debug {
			t.Errorf("a memory %q of %v reads %q and %q, want %q and %q", c.kind, c.p, text, debug, c.text, c.debug)
		}
	}
}
