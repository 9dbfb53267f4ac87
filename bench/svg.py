"""What the pictures of the tables have in common."""


def text(x, y, content, size=13, anchor="start", colour="#222222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">'
            f"{content}</text>")


def document(width, height, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>')
    return "\n".join([head, *parts, "</svg>", ""])
