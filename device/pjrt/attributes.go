package pjrt

// Attributes are what the client's plugin says of itself, see
// Plugin.Attributes.
func (c *Client) Attributes() map[string]any { return c.plugin.Attributes() }
