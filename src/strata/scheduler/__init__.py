"""Who is served next, in which slot and by how much: decisions over integers and seconds."""
