module gojournal

go 1.21
