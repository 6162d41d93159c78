package pjrt

// #include "driver.h"
import "C"

import (
	"slices"
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// MemoryStats returns the plugin's own numbers if it has them, otherwise the bytes of the buffers that this client made
// in the device's default memory.
func (c *Client) MemoryStats(local int) (device.MemoryStats, error) {
	if err := c.checkDevice(local); err != nil {
		return device.MemoryStats{}, err
	}
	if err := c.hold(); err != nil {
		return device.MemoryStats{}, err
	}
	defer c.drop()
	var inUse, limit C.int64_t
	err := c.plugin.check(C.pwdrv_device_stats(c.plugin.api, c.handles[local].raw, &inUse, &limit))
	if status.CodeOf(err) == status.Unimplemented {
		return device.MemoryStats{InUse: c.inUse[local].Load(), Limit: -1}, nil
	}
	return device.MemoryStats{InUse: int64(inUse), Limit: int64(limit)}, err
}

func (c *Client) checkDevice(local int) error {
	if local < 0 || local >= len(c.devices) {
		return status.New(status.InvalidArgument, "there is no device %d: the %s client has devices 0 to %d",
			local, c.platform, len(c.devices)-1)
	}
	return nil
}

// memory finds a memory of a device; "" is the default one. It returns the index into Device.Memories.
func (c *Client) memory(local int, kind string) (int, error) {
	if err := c.checkDevice(local); err != nil {
		return 0, err
	}
	d := &c.devices[local]
	if kind == "" {
		return d.Default, nil
	}
	i := slices.IndexFunc(d.Memories, func(m device.Memory) bool { return m.Kind == kind })
	if i < 0 {
		var kinds []string
		for _, m := range d.Memories {
			kinds = append(kinds, m.Kind)
		}
		return 0, status.New(status.InvalidArgument, "device %d has no memory %s: it has %s", local,
			status.Quote(kind), strings.Join(kinds, ", "))
	}
	return i, nil
}
