//! Tree of texts with common starts (radix tree). Its walk depends on the length of a text, not on the number of texts.

/// Texts with common starts, each with a value.
#[derive(Debug)]
pub(crate) struct TextTree<T> {
    /// The first is the root.
    nodes: Vec<TextNode<T>>,
}

#[derive(Debug)]
pub(crate) struct TextNode<T> {
    /// Bytes after those of the parent.
    text: Box<[u8]>,
    /// First bytes of the children, as bits.
    firsts: [u64; 4],
    /// Indices of the children, in the order of their first bytes.
    children: Vec<u32>,
    parent: Option<u32>,
    /// Bytes from the root to the end of the text.
    depth: u32,
    pub(crate) value: T,
}

impl<T> TextNode<T> {
    /// Child whose text begins with this byte, or the position that it would have.
    fn child(&self, first: u8) -> Result<u32, usize> {
        let (word, bit) = (usize::from(first >> 6), 1_u64 << (first & 63));
        let before = self.firsts[..word].iter().map(|bits| bits.count_ones()).sum::<u32>();
        let position = (before + (self.firsts[word] & (bit - 1)).count_ones()) as usize;
        if self.firsts[word] & bit == 0 { Err(position) } else { Ok(self.children[position]) }
    }

    fn insert(&mut self, first: u8, position: usize, child: u32) {
        self.firsts[usize::from(first >> 6)] |= 1 << (first & 63);
        self.children.insert(position, child);
    }
}

impl<T: Default> Default for TextTree<T> {
    fn default() -> Self {
        let root = TextNode {
            text: [].into(),
            firsts: [0; 4],
            children: Vec::new(),
            parent: None,
            depth: 0,
            value: T::default(),
        };
        Self { nodes: vec![root] }
    }
}

impl<T: Default> TextTree<T> {
    /// Value of this text, which is made if there is none.
    pub(crate) fn value(&mut self, text: &[u8]) -> &mut T {
        let (mut at, mut rest) = (0, text);
        while let Some(first) = rest.first() {
            let child = match self.nodes[at].child(*first) {
                Ok(child) => child as usize,
                Err(position) => {
                    let child = self.add(rest, at as u32, text.len());
                    self.nodes[at].insert(*first, position, child);
                    return &mut self.nodes[child as usize].value;
                }
            };
            let common = self.nodes[child].text.iter().zip(rest).take_while(|(one, other)| one == other).count();
            let child = if common < self.nodes[child].text.len() { self.split(at, child, common) } else { child };
            (at, rest) = (child, &rest[common..]);
        }
        &mut self.nodes[at].value
    }

    fn add(&mut self, text: &[u8], parent: u32, depth: usize) -> u32 {
        let node = TextNode {
            text: text.into(),
            firsts: [0; 4],
            children: Vec::new(),
            parent: Some(parent),
            depth: depth as u32,
            value: T::default(),
        };
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Puts a node for the first bytes of a child's text between the child and its parent; returns its index.
    fn split(&mut self, parent: usize, child: usize, length: usize) -> usize {
        let (start, end) = self.nodes[child].text.split_at(length);
        let (start, end): (Box<[u8]>, Box<[u8]>) = (start.into(), end.into());
        let depth = self.nodes[child].depth as usize - end.len();
        let between = self.add(&start, parent as u32, depth);
        let of_parent = self.nodes[parent].children.iter_mut().find(|index| **index as usize == child);
        of_parent.into_iter().for_each(|index| *index = between);
        self.nodes[between as usize].insert(end[0], 0, child as u32);
        let child = &mut self.nodes[child];
        (child.text, child.parent) = (end, Some(between));
        between as usize
    }
}

impl<T> TextTree<T> {
    /// Node of the longest text of the tree that this text begins with. `step` is called with the number of bytes that
    /// each node compares.
    pub(crate) fn deepest(&self, text: &[u8], mut step: impl FnMut(usize)) -> &TextNode<T> {
        let (mut node, mut rest) = (&self.nodes[0], text);
        loop {
            step(node.text.len());
            let Some(first) = rest.first() else { return node };
            let Ok(child) = node.child(*first) else { return node };
            let child = &self.nodes[child as usize];
            // The first byte is known to be the same.
            if child.text.len() > 1 && !rest.starts_with(&child.text) {
                return node;
            }
            (node, rest) = (child, &rest[child.text.len()..]);
        }
    }

    /// All values.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.nodes.iter_mut().map(|node| &mut node.value)
    }

    /// Nodes from this one to the root, each with the length of its text.
    pub(crate) fn up<'a>(&'a self, node: &'a TextNode<T>) -> impl Iterator<Item = (usize, &'a TextNode<T>)> {
        let parent = |node: &&'a TextNode<T>| node.parent.map(|parent| &self.nodes[parent as usize]);
        std::iter::successors(Some(node), parent).map(|node| (node.depth as usize, node))
    }
}
