package pjrt

// Attributes returns what the client's plugin reports about itself, see Plugin.Attributes.
func (c *Client) Attributes() map[string]any { return c.plugin.Attributes() }
