//! Patterns of names.

/// Shell matching with `*` and `?`, in linear space and without recursion.
pub fn glob_match(glob: &str, text: &str) -> bool {
    let (g, t) = (glob.as_bytes(), text.as_bytes());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < t.len() {
        if i < g.len() && g[i] == b'*' {
            star = Some((i, j));
            i += 1;
        } else if i < g.len() && (g[i] == b'?' || g[i] == t[j]) {
            i += 1;
            j += 1;
        } else if let Some((si, sj)) = star {
            i = si + 1;
            j = sj + 1;
            star = Some((si, sj + 1));
        } else {
            return false;
        }
    }
    g[i..].iter().all(|&c| c == b'*')
}
